// The loops of epilogue_internal.h, inlined into the including file, so that they can be compiled
// for several instruction sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/simd_internal.h"

namespace shiplap::kernels {

// `count` elements of any dtype, from `first` on.
struct VectorSource {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

[[gnu::always_inline]] inline void load_partial(const VectorSource& from, F32x16& lanes) {
  switch (from.type) {
    case DType::f32:
      return load_partial(static_cast<const float*>(from.data) + from.first, from.count, lanes);
    case DType::bf16:
      return load_partial(static_cast<const Bf16*>(from.data) + from.first, from.count, lanes);
    default:  // f16
      return load_partial(static_cast<const F16*>(from.data) + from.first, from.count, lanes);
  }
}

struct VectorDestination {
  const MatrixView& result;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

[[gnu::always_inline]] inline void store_partial(const F32x16& lanes, const VectorDestination& to) {
  void* const data = to.result.data;
  switch (to.result.type) {
    case DType::f32:
      return store_partial(lanes, to.count, static_cast<float*>(data) + to.first);
    case DType::bf16:
      return store_partial(lanes, to.count, static_cast<Bf16*>(data) + to.first);
    default:  // f16
      return store_partial(lanes, to.count, static_cast<F16*>(data) + to.first);
  }
}

// x / 2 (1 + tanh(u)) = x / (1 + e^-2u). Where e^-2u would overflow, the result is x times zero.
[[gnu::always_inline]] inline void gelu_tanh(F32x16& x) {
  constexpr auto kFactor =
      static_cast<float>(-2 * std::numbers::log2e * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  constexpr float kMaxExponent = 126;
  const F32x16 exponent = (x + x * x * x * 0.044715F) * kFactor;
  const auto vanishes = exponent > kMaxExponent;
  F32x16 power = vanishes ? F32x16{} + kMaxExponent : exponent;
  exp2_approx(power);
  x = vanishes ? x * 0.0F : x / (power + 1.0F);
}

[[gnu::always_inline]] inline void epilogue_row(const EpilogueStep& step, std::int64_t row) {
  for (std::int64_t j = 0; j < step.columns; j += kLanes) {
    const std::int64_t count = std::min(kLanes, step.columns - j);
    const std::int64_t at = row * step.c.stride + j;
    F32x16 x{};
    load_partial(step.sums + row * step.stride_sums + j, count, x);
    x *= step.alpha;
    if (step.beta != 0) {
      F32x16 old{};
      load_partial({.data = step.c.data, .type = step.c.type, .first = at, .count = count}, old);
      x += old * step.beta;
    }
    if (step.bias != nullptr) {
      F32x16 bias{};
      load_partial(step.bias + j, count, bias);
      x += bias;
    }
    const MatrixView& pre = step.pre_activation;
    if (pre.data != nullptr) store_partial(x, {pre, row * pre.stride + j, count});
    if (step.activation == Activation::gelu_tanh) gelu_tanh(x);
    store_partial(x, {step.c, at, count});
  }
}

[[gnu::always_inline]] inline void apply_epilogue_inline(const EpilogueStep& step) {
  for (std::int64_t row = 0; row < step.rows; ++row) epilogue_row(step, row);
}

[[gnu::always_inline]] inline void convert_to_f32_inline(const ConvertStep& step) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    const std::int64_t count = std::min(kLanes, step.count - j);
    F32x16 x{};
    load_partial({.data = step.from, .type = step.type, .first = j, .count = count}, x);
    store_partial(x, count, step.to + j);
  }
}

// tanh(x) = 1 - 2 / (1 + e^2x). Near 0 that difference would lose digits, and the first terms of
// the Taylor series are exact enough. Beyond 10 the result rounds to 1.
[[gnu::always_inline]] inline void tanh_lanes(F32x16& x) {
  constexpr auto kFactor = static_cast<float>(2 * std::numbers::log2e);
  constexpr float kLarge = 10;
  constexpr float kNear = 0.25;
  const F32x16 given = x;
  const F32x16 least = F32x16{} - kLarge;
  F32x16 power = given > kLarge ? F32x16{} + kLarge : given;
  power = (power < least ? least : power) * kFactor;
  exp2_approx(power);
  const F32x16 square = given * given;
  F32x16 series = square * (62.0F / 2835) - 17.0F / 315;
  series = series * square + 2.0F / 15;
  series = series * square - 1.0F / 3;
  series = given * (series * square + 1.0F);
  x = square < kNear * kNear ? series : 1.0F - 2.0F / (power + 1.0F);
}

[[gnu::always_inline]] inline void apply_tanh_inline(std::span<const float> x,
                                                     std::span<float> result) {
  for (std::int64_t i = 0; i < std::ssize(x); i += kLanes) {
    const std::int64_t count = std::min(kLanes, std::ssize(x) - i);
    F32x16 lanes{};
    load_partial(x.data() + i, count, lanes);
    tanh_lanes(lanes);
    store_partial(lanes, count, result.data() + i);
  }
}

}  // namespace shiplap::kernels
