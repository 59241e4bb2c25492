// Rows of numbers into FP8 and back.
//
//   const float scale = current_scale(largest_absolute(x), DType::fp8_e4m3);
//   quantize(x, scale, {.codes = codes, .rows = m, .columns = n, .scales = inverse});
//   dequantize({.codes = codes, .rows = m, .columns = n, .scales = inverse}, {.data = y});
//
// A number x becomes the code nearest to the float x * scale (fp8.h); a code becomes code *
// inverse, rounded once to the type it is stored in. The same bits on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shiplap/base/dtype.h"
#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/scaling.h"

namespace shiplap::kernels {

// rows: a float for a row, by which its codes are multiplied: the inverse of the scale. blocks:
// MXFP8, an E8m0 for every 32 numbers of a row, the last of which may be fewer.
enum class Scales : std::uint8_t { rows, blocks };

// FP8 numbers by rows, and what they are to be multiplied by. Codes and scales may lie apart, or in
// the same rows, one behind the other.
struct Fp8Rows {
  std::byte* codes = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  // bytes from a row of codes to the next; 0: no gaps
  DType format = DType::fp8_e4m3;
  Scales kind = Scales::rows;
  std::byte* scales = nullptr;  // need not be aligned
  // Bytes from the scales of a row to those of the next. 0: one for all rows (Scales::rows), or no
  // gaps (Scales::blocks).
  std::int64_t scale_stride = 0;
};

// The bytes of the scales of a row: 4, or 1 for every 32 columns.
[[nodiscard]] std::int64_t scale_bytes(Scales kind, std::int64_t columns);

// The same from a row on, `count` of them.
[[nodiscard]] Fp8Rows some_rows(const Fp8Rows& all, std::int64_t first, std::int64_t count);

// What is to be rounded. Stride counts elements; 0: no gaps.
struct WideRows {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

// Infinite if any number is; NaNs do not count, as in TransformerEngine. 0 of no numbers.
[[nodiscard]] float largest_absolute(const WideRows& rows);

// All rows with this scale; 1 / scale is written into every row's slot, or the one. Scales::rows.
// Promises that the scale is a normal number, and that both sides have the same shape.
void quantize(const WideRows& from, float scale, const Fp8Rows& to);

// Each row with current_scale() of its own amax. Scales::rows, with a slot for each row. What is
// infinite makes its whole row NaN, so that it is not lost.
void quantize_by_row(const WideRows& from, const Fp8Rows& to);

// Scales::blocks. A NaN stays one and does not count for the scale of its block. Numbers of a block
// with the smallest scale, 2^-127, are multiplied by 2^127 as the scale says; TransformerEngine
// multiplies them by 1, so that they become zero.
void quantize_blocks(const WideRows& from, const Fp8Rows& to, MxRule rule = MxRule::round_up);

// To f32 or bf16. An E8m0 of 0xff makes its whole block NaN.
void dequantize(const Fp8Rows& from, const Result& to);

// to += code * inverse, which is rounded to float before it is added. Stride counts elements; 0: no
// gaps.
void dequantize_add(const Fp8Rows& from, float* to, std::int64_t stride = 0);

}  // namespace shiplap::kernels
