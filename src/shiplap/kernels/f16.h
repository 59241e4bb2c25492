// f16: IEEE 754 binary16, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace shiplap::kernels {

struct F16 {
  std::uint16_t bits = 0;
  friend bool operator==(F16, F16) = default;
};

// A subnormal of f16 is a float of which the exponent is 112 too small, like all the others; the
// product is exact. What is then 65536 or more was infinite or not a number.
[[nodiscard]] constexpr float to_float(F16 value) {
  const std::uint32_t bits = value.bits;
  const float scaled = std::bit_cast<float>((bits & 0x7fff) << 13) * 0x1p112F;
  const auto magnitude = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = scaled >= 65536.0F ? 0x7f800000 : 0;
  return std::bit_cast<float>(magnitude | special | ((bits & 0x8000) << 16));
}

[[nodiscard]] constexpr F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {
    rounded = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 65536
    rounded = 0x7c00;
  } else if (magnitude < 0x38800000) {  // 2^-14: adding 1/2 rounds to multiples of 2^-24
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  } else {
    rounded = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  }
  return {static_cast<std::uint16_t>(rounded | sign)};
}

}  // namespace shiplap::kernels
