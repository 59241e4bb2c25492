// bf16: the upper half of a float, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace shiplap::kernels {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

[[nodiscard]] constexpr float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

[[nodiscard]] constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // A NaN stays NaN, whatever its lower half is.
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  }
  return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

}  // namespace shiplap::kernels
