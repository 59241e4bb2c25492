// 8-bit floating-point formats: e4m3 and e5m2 for operands, and e8m0, the power-of-two scale of a
// block (OCP Microscaling Formats 1.0).
//
// Rounding is to nearest, ties to even, and saturating: values out of range, including infinities,
// become the largest finite value. A NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "shiplap/base/dtype.h"

namespace shiplap::kernels {

// Four bits of exponent, three of mantissa; 2^-9 .. 448, no infinities, NaN is 0x7f and 0xff. Also
// called e4m3fn.
struct E4m3 {
  std::uint8_t bits = 0;
  friend bool operator==(E4m3, E4m3) = default;
};

// The upper half of an f16: 2^-16 .. 57344, infinities and NaNs.
struct E5m2 {
  std::uint8_t bits = 0;
  friend bool operator==(E5m2, E5m2) = default;
};

// 2^(bits - 127); 0xff is NaN. There is no zero.
struct E8m0 {
  std::uint8_t bits = 0;
  friend bool operator==(E8m0, E8m0) = default;
};

// Returns the largest finite value of fp8_e4m3 or fp8_e5m2.
[[nodiscard]] constexpr float fp8_max(DType format) {
  return format == DType::fp8_e4m3 ? 448.0F : 57344.0F;
}

// Returns the maximum relative rounding error of values that are neither out of range nor
// subnormal.
[[nodiscard]] constexpr double unit_roundoff(DType format) {
  return format == DType::fp8_e4m3 ? 0x1p-4 : 0x1p-3;
}

// Returns the smallest positive value. The rounding error of x is at most max(unit_roundoff * |x|,
// min_subnormal / 2), up to the largest value.
[[nodiscard]] constexpr double min_subnormal(DType format) {
  return format == DType::fp8_e4m3 ? 0x1p-9 : 0x1p-16;
}

// A subnormal is a float of which the exponent is 120 too small, like all the others; the product
// is exact.
[[nodiscard]] constexpr float to_float(E4m3 value) {
  const std::uint32_t bits = value.bits;
  const std::uint32_t sign = (bits & 0x80) << 24;
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000 | sign);
  const float magnitude = std::bit_cast<float>((bits & 0x7f) << 20) * 0x1p120F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

// The same, 112 too small. What is then 65536 or more is infinite or not a number.
[[nodiscard]] constexpr float to_float(E5m2 value) {
  const std::uint32_t bits = value.bits;
  const std::uint32_t sign = (bits & 0x80) << 24;
  if ((bits & 0x7f) > 0x7c) return std::bit_cast<float>(0x7fc00000 | sign);
  if ((bits & 0x7f) == 0x7c) return std::bit_cast<float>(0x7f800000 | sign);
  const float magnitude = std::bit_cast<float>((bits & 0x7f) << 21) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

[[nodiscard]] constexpr float to_float(E8m0 value) {
  if (value.bits == 0xff) return std::numeric_limits<float>::quiet_NaN();
  if (value.bits == 0) return 0x1p-127F;
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 23);
}

// Where numbers are subnormal, adding a power of two rounds to multiples of the smallest step.
[[nodiscard]] constexpr E4m3 to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {
    rounded = 0x7f;
  } else if (magnitude >= 0x43e00000) {  // 448
    rounded = 0x7e;
  } else if (magnitude < 0x3c800000) {  // 2^-6
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) - 0x46800000;
  } else {
    rounded = (magnitude - 0x3c000000 + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
  }
  return {static_cast<std::uint8_t>(rounded | sign)};
}

[[nodiscard]] constexpr E5m2 to_e5m2(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {
    rounded = 0x7e;
  } else if (magnitude >= 0x47600000) {  // 57344
    rounded = 0x7b;
  } else if (magnitude < 0x38800000) {  // 2^-14
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p7F) - 0x43000000;
  } else {
    rounded = (magnitude - 0x38000000 + 0xfffff + ((magnitude >> 21) & 1)) >> 21;
  }
  return {static_cast<std::uint8_t>(rounded | sign)};
}

}  // namespace shiplap::kernels
