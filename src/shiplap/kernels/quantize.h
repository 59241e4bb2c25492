// Quantization to FP8 and back.
//
//   const float scale = current_scale(compute_amax(x), DType::fp8_e4m3);
//   const MatrixView q{
//       .data = quantized, .type = DType::fp8_e4m3, .rows = m, .columns = n, .scales = inverse};
//   quantize(x, scale, q);
//   dequantize(q, {.data = y});
//
// A value x becomes the FP8 value nearest to the f32 x * scale (fp8.h); dequantized, it is
// multiplied by the inverse scale and rounded once to its dtype. The same bits on every processor.
// Matrices are row-major; sizes of outputs that follow from the input may be omitted.
#pragma once

#include "shiplap/kernels/matrix_view.h"
#include "shiplap/kernels/scaling.h"

namespace shiplap::kernels {

// Returns the largest absolute value. Infinite if any value is; NaNs are ignored, as in
// TransformerEngine. 0 if empty.
[[nodiscard]] float compute_amax(const ConstMatrixView& rows);

// Quantizes all rows with one scale and writes 1 / scale for each row, or once. per_row.
// REQUIRES: the scale is a normal number, and both matrices have the same shape.
void quantize(const ConstMatrixView& from, float scale, const MatrixView& to);

// Quantizes each row with current_scale() of its amax. per_row, with a scale per row. An infinity
// makes its whole row NaN, so that it is not lost.
void quantize_by_row(const ConstMatrixView& from, const MatrixView& to);

// Quantizes to MXFP8. per_block. A NaN stays NaN and is ignored for the scale of its block. Values
// of a block with the smallest scale, 2^-127, are multiplied by 2^127; TransformerEngine multiplies
// them by 1, so that they become zero.
void quantize_blocks(const ConstMatrixView& from, const MatrixView& to,
                     MxRule rule = MxRule::round_up);

// Dequantizes to f32 or bf16. An E8m0 of 0xff makes its whole block NaN.
void dequantize(const ConstMatrixView& from, const MatrixView& to);

// to += dequantized values, each rounded to f32 before it is added. `to` is f32.
void dequantize_add(const ConstMatrixView& from, const MatrixView& to);

}  // namespace shiplap::kernels
