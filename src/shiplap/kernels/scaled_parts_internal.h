// Rows of MXFP8 in up to three parts that bf16 can hold.
//
// A number of bf16 is normal from 2^-126 on, and below 2^128. Codes of e4m3 have exponents -9 .. 8,
// those of e5m2 -16 .. 15, so that codes times 2^(scale - 127) are normal or zero if the scale is
// one of 10 .. 246, or of 17 .. 239. Blocks beyond are taken times 2^32 or 2^-32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/matrix_view.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {

enum class Part : std::uint8_t { usual, small, large };
inline constexpr Part kParts[] = {Part::usual, Part::small, Part::large};
inline constexpr int kPartShift = 32;

// By what the sum of a part is to be multiplied.
[[nodiscard]] constexpr double power_of(Part part) {
  if (part == Part::usual) return 1;
  return part == Part::small ? 0x1p-32 : 0x1p32;
}

// A NaN is a usual one.
[[nodiscard]] constexpr Part part_of(DType format, std::byte scale) {
  const int code = std::to_integer<int>(scale);
  if (code < (format == DType::fp8_e4m3 ? 10 : 17)) return Part::small;
  return code > (format == DType::fp8_e4m3 ? 246 : 239) && code != 0xff ? Part::large : Part::usual;
}

// A row of codes with the scales of its blocks.
struct MxRow {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  std::int64_t count = 0;
  DType format = DType::fp8_e4m3;
};

[[nodiscard]] inline bool has_numbers(const std::byte* codes, std::int64_t count) {
  return std::any_of(codes, codes + count,
                     [](std::byte code) { return (code & std::byte{0x7f}) != std::byte{}; });
}

// Whether some block that is not all zeros is not usual.
[[nodiscard]] inline bool has_other_parts(const MxRow& row) {
  for (std::int64_t j = 0; j < row.count; j += kMxBlock) {
    if (part_of(row.format, row.scales[j / kMxBlock]) != Part::usual &&
        has_numbers(row.codes + j, std::min(kMxBlock, row.count - j))) {
      return true;
    }
  }
  return false;
}

// The numbers of one part, with zeros in place of the others.
inline void widen_part(const MxRow& row, Part part, Bf16* to) {
  for (std::int64_t j = 0; j < row.count; j += kMxBlock) {
    const std::int64_t count = std::min(kMxBlock, row.count - j);
    const std::byte scale = row.scales[j / kMxBlock];
    if (part_of(row.format, scale) != part) {
      std::fill_n(to + j, count, Bf16{});
      continue;
    }
    const int shift = part == Part::usual ? 0 : part == Part::small ? kPartShift : -kPartShift;
    const auto moved = static_cast<std::byte>(std::to_integer<int>(scale) + shift);
    best_quantize_loops().widen_to_bf16(
        {.from = row.codes + j, .format = row.format, .count = count, .scales = &moved}, to + j);
  }
}

}  // namespace shiplap::kernels
