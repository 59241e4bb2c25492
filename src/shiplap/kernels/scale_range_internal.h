// MXFP8 rows in up to three ranges of scales that bf16 can represent.
//
// bf16 is normal from 2^-126 to below 2^128. Values of e4m3 have exponents -9 .. 8, those of e5m2
// -16 .. 15, so values times 2^(scale - 127) are normal or zero if the scale is in 10 .. 246, or in
// 17 .. 239. Blocks out of this range are multiplied by 2^32 or 2^-32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/matrix_view.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {

enum class ScaleRange : std::uint8_t { normal, tiny, huge };
inline constexpr ScaleRange kScaleRanges[] = {ScaleRange::normal, ScaleRange::tiny,
                                              ScaleRange::huge};
inline constexpr int kRangeShift = 32;

// The factor of the sum of a range.
[[nodiscard]] constexpr double range_factor(ScaleRange range) {
  if (range == ScaleRange::normal) return 1;
  return range == ScaleRange::tiny ? 0x1p-32 : 0x1p32;
}

// A NaN scale is normal.
[[nodiscard]] constexpr ScaleRange scale_range_of(DType format, std::byte scale) {
  const int code = std::to_integer<int>(scale);
  if (code < (format == DType::fp8_e4m3 ? 10 : 17)) return ScaleRange::tiny;
  return code > (format == DType::fp8_e4m3 ? 246 : 239) && code != 0xff ? ScaleRange::huge
                                                                        : ScaleRange::normal;
}

// A row of quantized values with the scales of its blocks.
struct MxRow {
  const std::byte* quantized = nullptr;
  const std::byte* scales = nullptr;
  std::int64_t count = 0;
  DType format = DType::fp8_e4m3;
};

[[nodiscard]] inline bool has_nonzero(const std::byte* quantized, std::int64_t count) {
  return std::any_of(quantized, quantized + count,
                     [](std::byte code) { return (code & std::byte{0x7f}) != std::byte{}; });
}

// Returns whether a block that is not all zeros is out of the normal range.
[[nodiscard]] inline bool has_out_of_range_blocks(const MxRow& row) {
  for (std::int64_t j = 0; j < row.count; j += kMxBlock) {
    if (scale_range_of(row.format, row.scales[j / kMxBlock]) != ScaleRange::normal &&
        has_nonzero(row.quantized + j, std::min(kMxBlock, row.count - j))) {
      return true;
    }
  }
  return false;
}

// Dequantizes the blocks of one range; the others become zeros.
inline void dequantize_range(const MxRow& row, ScaleRange range, Bf16* to) {
  for (std::int64_t j = 0; j < row.count; j += kMxBlock) {
    const std::int64_t count = std::min(kMxBlock, row.count - j);
    const std::byte scale = row.scales[j / kMxBlock];
    if (scale_range_of(row.format, scale) != range) {
      std::fill_n(to + j, count, Bf16{});
      continue;
    }
    const int shift = range == ScaleRange::normal ? 0
                      : range == ScaleRange::tiny ? kRangeShift
                                                  : -kRangeShift;
    const auto moved = static_cast<std::byte>(std::to_integer<int>(scale) + shift);
    best_quantize_loops().dequantize_to_bf16(
        {.from = row.quantized + j, .format = row.format, .count = count, .scales = &moved},
        to + j);
  }
}

}  // namespace shiplap::kernels
