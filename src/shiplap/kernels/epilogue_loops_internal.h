// The loops of epilogue_internal.h, inlined into whoever includes them, so that they can be
// compiled for several processors.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/lanes_internal.h"

namespace shiplap::kernels {

// Some numbers of any type, from one on.
struct From {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

[[gnu::always_inline]] inline void load_some(const From& from, Lanes& lanes) {
  switch (from.type) {
    case DType::f32:
      return load_some(static_cast<const float*>(from.data) + from.first, from.count, lanes);
    case DType::bf16:
      return load_some(static_cast<const Bf16*>(from.data) + from.first, from.count, lanes);
    default:  // f16
      return load_some(static_cast<const F16*>(from.data) + from.first, from.count, lanes);
  }
}

struct To {
  const MatrixView& result;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

[[gnu::always_inline]] inline void store_some(const Lanes& lanes, const To& to) {
  void* const data = to.result.data;
  switch (to.result.type) {
    case DType::f32:
      return store_some(lanes, to.count, static_cast<float*>(data) + to.first);
    case DType::bf16:
      return store_some(lanes, to.count, static_cast<Bf16*>(data) + to.first);
    default:  // f16
      return store_some(lanes, to.count, static_cast<F16*>(data) + to.first);
  }
}

// x / 2 (1 + tanh(u)) = x / (1 + e^-2u). Where e^-2u would overflow, the result is x times zero.
[[gnu::always_inline]] inline void gelu_tanh(Lanes& x) {
  constexpr auto kFactor =
      static_cast<float>(-2 * std::numbers::log2e * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  constexpr float kMost = 126;
  const Lanes exponent = (x + x * x * x * 0.044715F) * kFactor;
  const auto vanishes = exponent > kMost;
  Lanes power = vanishes ? Lanes{} + kMost : exponent;
  power_of_two(power);
  x = vanishes ? x * 0.0F : x / (power + 1.0F);
}

[[gnu::always_inline]] inline void epilogue_row(const EpilogueStep& step, std::int64_t row) {
  for (std::int64_t j = 0; j < step.columns; j += kLanes) {
    const std::int64_t count = std::min(kLanes, step.columns - j);
    const std::int64_t at = row * step.c.stride + j;
    Lanes x{};
    load_some(step.sums + row * step.stride_sums + j, count, x);
    x *= step.alpha;
    if (step.beta != 0) {
      Lanes old{};
      load_some({.data = step.c.data, .type = step.c.type, .first = at, .count = count}, old);
      x += old * step.beta;
    }
    if (step.bias != nullptr) {
      Lanes bias{};
      load_some(step.bias + j, count, bias);
      x += bias;
    }
    const MatrixView& before = step.before_activation;
    if (before.data != nullptr) store_some(x, {before, row * before.stride + j, count});
    if (step.activation == Activation::gelu_tanh) gelu_tanh(x);
    store_some(x, {step.c, at, count});
  }
}

[[gnu::always_inline]] inline void apply_epilogue_here(const EpilogueStep& step) {
  for (std::int64_t row = 0; row < step.rows; ++row) epilogue_row(step, row);
}

[[gnu::always_inline]] inline void widen_here(const WidenStep& step) {
  for (std::int64_t j = 0; j < step.count; j += kLanes) {
    const std::int64_t count = std::min(kLanes, step.count - j);
    Lanes x{};
    load_some({.data = step.from, .type = step.type, .first = j, .count = count}, x);
    store_some(x, count, step.to + j);
  }
}

}  // namespace shiplap::kernels
