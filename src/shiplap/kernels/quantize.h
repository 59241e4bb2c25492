// Rows of numbers into FP8 and back.
//
//   const float scale = current_scale(largest_absolute(x), DType::fp8_e4m3);
//   const MatrixView q{
//       .data = codes, .type = DType::fp8_e4m3, .rows = m, .columns = n, .scales = inverse};
//   quantize(x, scale, q);
//   dequantize(q, {.data = y});
//
// A number x becomes the code nearest to the float x * scale (fp8.h); a code becomes code *
// inverse, rounded once to the type it is stored in. The same bits on every processor. Matrices lie
// by rows; sizes of results that follow from the factor need not be given.
#pragma once

#include "shiplap/kernels/matrix_view.h"
#include "shiplap/kernels/scaling.h"

namespace shiplap::kernels {

// Infinite if any number is; NaNs do not count, as in TransformerEngine. 0 of no numbers.
[[nodiscard]] float largest_absolute(const ConstMatrixView& rows);

// All rows with this scale; 1 / scale is written into every row's slot, or the one. Scales::rows.
// REQUIRES: the scale is a normal number, and both sides have the same shape.
void quantize(const ConstMatrixView& from, float scale, const MatrixView& to);

// Each row with current_scale() of its own amax. Scales::rows, with a slot for each row. What is
// infinite makes its whole row NaN, so that it is not lost.
void quantize_by_row(const ConstMatrixView& from, const MatrixView& to);

// Scales::blocks. A NaN stays one and does not count for the scale of its block. Numbers of a block
// with the smallest scale, 2^-127, are multiplied by 2^127 as the scale says; TransformerEngine
// multiplies them by 1, so that they become zero.
void quantize_blocks(const ConstMatrixView& from, const MatrixView& to,
                     MxRule rule = MxRule::round_up);

// To f32 or bf16. An E8m0 of 0xff makes its whole block NaN.
void dequantize(const ConstMatrixView& from, const MatrixView& to);

// to += code * inverse, which is rounded to float before it is added. To f32.
void dequantize_add(const ConstMatrixView& from, const MatrixView& to);

}  // namespace shiplap::kernels
