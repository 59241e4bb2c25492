// Sixteen floats at a time: loads, stores and 2^x, inlined into whoever includes them, so that they
// can be compiled for several processors.
//
// They are written with the vectors of gcc and clang. Vectors are handed over by reference, since
// passing one by value depends on the processor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numbers>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"

namespace shiplap::kernels {

inline constexpr std::int64_t kLanes = 16;

using Lanes [[gnu::vector_size(kLanes * 4)]] = float;
using Words [[gnu::vector_size(kLanes * 4)]] = std::uint32_t;
using Halves [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;

[[gnu::always_inline]] inline void load(const float* from, Lanes& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}

[[gnu::always_inline]] inline void load(const Bf16* from, Lanes& lanes) {
  Halves halves;
  std::memcpy(&halves, &from->bits, sizeof halves);
  lanes = reinterpret_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}

// As to_float().
[[gnu::always_inline]] inline void load(const F16* from, Lanes& lanes) {
  Halves halves;
  std::memcpy(&halves, &from->bits, sizeof halves);
  const Words bits = __builtin_convertvector(halves, Words);
  const Lanes scaled = reinterpret_cast<Lanes>((bits & 0x7fffU) << 13) * 0x1p112F;
  const Words special = scaled >= 65536.0F ? Words{} + 0x7f800000U : Words{};
  lanes =
      reinterpret_cast<Lanes>(reinterpret_cast<Words>(scaled) | special | ((bits & 0x8000U) << 16));
}

[[gnu::always_inline]] inline void store(const Lanes& lanes, float* to) {
  std::memcpy(to, &lanes, sizeof lanes);
}

// The rounding of to_bf16().
[[gnu::always_inline]] inline void store(const Lanes& lanes, Bf16* to) {
  const Words bits = reinterpret_cast<Words>(lanes);
  const Words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const Words quiet = (bits >> 16) | 0x40U;
  const Words chosen = (bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded;
  const Halves halves = __builtin_convertvector(chosen, Halves);
  std::memcpy(&to->bits, &halves, sizeof halves);
}

// The rounding of to_f16().
[[gnu::always_inline]] inline void store(const Lanes& lanes, F16* to) {
  const Words bits = reinterpret_cast<Words>(lanes);
  const Words magnitude = bits & 0x7fffffffU;
  const Words nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  const Words tiny =
      reinterpret_cast<Words>(reinterpret_cast<Lanes>(magnitude) + 0.5F) - 0x3f000000U;
  const Words usual = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  Words chosen = magnitude < 0x38800000U ? tiny : usual;
  chosen = magnitude >= 0x47800000U ? Words{} + 0x7c00U : chosen;
  chosen = magnitude > 0x7f800000U ? nan : chosen;
  const Halves halves = __builtin_convertvector(chosen | ((bits >> 16) & 0x8000U), Halves);
  std::memcpy(&to->bits, &halves, sizeof halves);
}

// As many as there are, if that is fewer than kLanes.
template <class T>
[[gnu::always_inline]] inline void load_some(const T* from, std::int64_t count, Lanes& lanes) {
  if (count >= kLanes) return load(from, lanes);
  T some[kLanes]{};
  std::copy_n(from, count, some);
  load(some, lanes);
}

template <class T>
[[gnu::always_inline]] inline void store_some(const Lanes& lanes, std::int64_t count, T* to) {
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
// as long as the matrix products. Adding 1.5 * 2^23 rounds x to a whole number, which then stands
// in the lowest bits; the series gives the power of the rest, at most 1/2, of which the seventh
// power and above are below 1.3e-7.
[[gnu::always_inline]] inline void power_of_two(Lanes& x) {
  constexpr float kLeast = -126;
  constexpr float kRound = 12582912;
  const Lanes least = Lanes{} + kLeast;
  const Lanes given = x;
  const auto tiny = x < least;
  x = tiny ? least : x;
  const Lanes shifted = x + kRound;
  const Lanes rest = x - (shifted - kRound);
  Lanes power = rest * taylor(6) + taylor(5);
  power = power * rest + taylor(4);
  power = power * rest + taylor(3);
  power = power * rest + taylor(2);
  power = power * rest + taylor(1);
  power = power * rest + 1.0F;
  const Words bits = reinterpret_cast<Words>(power) + (reinterpret_cast<Words>(shifted) << 23);
  x = tiny ? Lanes{} : reinterpret_cast<Lanes>(bits);
  x = given == given ? x : given;  // arithmetic on the bits of a NaN could give any number
}

}  // namespace shiplap::kernels
