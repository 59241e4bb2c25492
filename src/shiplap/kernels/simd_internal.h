// Vectors of 16 floats: loads, stores and 2^x, inlined into the including file, so that they can be
// compiled for several instruction sets.
//
// They use the vector extensions of GCC and clang. Vectors are passed by reference, since passing
// one by value depends on the instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numbers>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"

namespace shiplap::kernels {

inline constexpr std::int64_t kLanes = 16;

using F32x16 [[gnu::vector_size(kLanes * 4)]] = float;
using U32x16 [[gnu::vector_size(kLanes * 4)]] = std::uint32_t;
using U16x16 [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;

[[gnu::always_inline]] inline void load(const float* from, F32x16& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}

[[gnu::always_inline]] inline void load(const Bf16* from, F32x16& lanes) {
  U16x16 halves;
  std::memcpy(&halves, &from->bits, sizeof halves);
  lanes = reinterpret_cast<F32x16>(__builtin_convertvector(halves, U32x16) << 16);
}

// As to_float().
[[gnu::always_inline]] inline void load(const F16* from, F32x16& lanes) {
  U16x16 halves;
  std::memcpy(&halves, &from->bits, sizeof halves);
  const U32x16 bits = __builtin_convertvector(halves, U32x16);
  const F32x16 scaled = reinterpret_cast<F32x16>((bits & 0x7fffU) << 13) * 0x1p112F;
  const U32x16 special = scaled >= 65536.0F ? U32x16{} + 0x7f800000U : U32x16{};
  lanes = reinterpret_cast<F32x16>(reinterpret_cast<U32x16>(scaled) | special |
                                   ((bits & 0x8000U) << 16));
}

[[gnu::always_inline]] inline void store(const F32x16& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// The rounding of to_bf16().
[[gnu::always_inline]] inline void store(const F32x16& lanes, Bf16* to) {
  const U32x16 bits = reinterpret_cast<U32x16>(lanes);
  const U32x16 rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const U32x16 quiet = (bits >> 16) | 0x40U;
  const U32x16 chosen = (bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded;
  const U16x16 halves = __builtin_convertvector(chosen, U16x16);
  std::memcpy(&to->bits, &halves, sizeof halves);
}

// The rounding of to_f16().
[[gnu::always_inline]] inline void store(const F32x16& lanes, F16* to) {
  const U32x16 bits = reinterpret_cast<U32x16>(lanes);
  const U32x16 magnitude = bits & 0x7fffffffU;
  const U32x16 nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  const U32x16 tiny =
      reinterpret_cast<U32x16>(reinterpret_cast<F32x16>(magnitude) + 0.5F) - 0x3f000000U;
  const U32x16 usual = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  U32x16 chosen = magnitude < 0x38800000U ? tiny : usual;
  chosen = magnitude >= 0x47800000U ? U32x16{} + 0x7c00U : chosen;
  chosen = magnitude > 0x7f800000U ? nan : chosen;
  const U16x16 halves = __builtin_convertvector(chosen | ((bits >> 16) & 0x8000U), U16x16);
  std::memcpy(&to->bits, &halves, sizeof halves);
}

// Loads or stores min(count, kLanes) elements.
template <class T>
[[gnu::always_inline]] inline void load_partial(const T* from, std::int64_t count, F32x16& lanes) {
  if (count >= kLanes) return load(from, lanes);
  T some[kLanes]{};
  std::copy_n(from, count, some);
  load(some, lanes);
}

template <class T>
[[gnu::always_inline]] inline void store_partial(const F32x16& lanes, std::int64_t count, T* to) {
  if (count >= kLanes) return store(lanes, to);
  T some[kLanes];
  store(lanes, some);
  std::copy_n(some, count, to);
}

// Coefficient k of the Taylor series of 2^x.
constexpr float taylor(int k) {
  double value = 1;
  for (int i = 1; i <= k; ++i) value *= std::numbers::ln2 / i;
  return static_cast<float>(value);
}

// 2^x for x < 127, with a relative error below 3e-7; zero for x < -126. std::exp took several times
// as long as the GEMMs. Adding 1.5 * 2^23 rounds x to an integer, which is then in the lowest bits;
// a Taylor series gives the power of the remainder, at most 1/2; terms from the seventh on are
// below 1.3e-7.
[[gnu::always_inline]] inline void exp2_approx(F32x16& x) {
  constexpr float kLeast = -126;
  constexpr float kRound = 12582912;
  const F32x16 least = F32x16{} + kLeast;
  const F32x16 given = x;
  const auto tiny = x < least;
  x = tiny ? least : x;
  const F32x16 shifted = x + kRound;
  const F32x16 rest = x - (shifted - kRound);
  F32x16 power = rest * taylor(6) + taylor(5);
  power = power * rest + taylor(4);
  power = power * rest + taylor(3);
  power = power * rest + taylor(2);
  power = power * rest + taylor(1);
  power = power * rest + 1.0F;
  const U32x16 bits = reinterpret_cast<U32x16>(power) + (reinterpret_cast<U32x16>(shifted) << 23);
  x = tiny ? F32x16{} : reinterpret_cast<F32x16>(bits);
  x = given == given ? x : given;  // arithmetic on the bits of a NaN could give any value
}

}  // namespace shiplap::kernels
