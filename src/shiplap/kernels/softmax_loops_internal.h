// The loops of softmax_internal.h, inlined into the including file, so that they can be compiled
// for several instruction sets.
//
// They use explicit vectors: the compiler does not vectorize a sum of floats, and it must be split
// the same way everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "shiplap/kernels/simd_internal.h"
#include "shiplap/kernels/softmax_internal.h"

namespace shiplap::kernels {

// Tree reduction: four dependent steps instead of sixteen.
template <class Function>
[[gnu::always_inline]] inline float reduce_lanes(const F32x16& lanes, Function function) {
  float values[kLanes];
  store(lanes, values);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) values[i] = function(values[i], values[i + half]);
  }
  return values[0];
}

[[gnu::always_inline]] inline float sum_of(const F32x16& lanes) {
  return reduce_lanes(lanes, [](float a, float b) { return a + b; });
}

[[gnu::always_inline]] inline float maximum_of(const F32x16& lanes) {
  return reduce_lanes(lanes, [](float a, float b) { return a < b ? b : a; });
}

// Masks the columns after the visible ones in their last vector. Returns the end of that vector.
[[gnu::always_inline]] inline std::int64_t mask_tail(float* row, std::int64_t visible,
                                                     float hidden) {
  const std::int64_t end = (visible + kLanes - 1) / kLanes * kLanes;
  std::fill(row + visible, row + end, hidden);
  return end;
}

// The score whose weight is zero.
[[gnu::always_inline]] inline float masked_score(float factor) {
  return std::copysign(std::numeric_limits<float>::infinity(), -factor);
}

template <class T>
[[gnu::always_inline]] inline void softmax_row(const SoftmaxStep<T>& step, std::int64_t row) {
  const ScoreBlock& block = step.block;
  float* const scores = block.scores + row * block.columns;
  T* const weights = step.weights + row * block.columns;
  const std::int64_t end = mask_tail(scores, block.visible[row], masked_score(block.factor));

  const float before = step.maximum[row];
  F32x16 most = F32x16{} + before;
  for (std::int64_t j = 0; j < end; j += kLanes) {
    F32x16 x;
    load(scores + j, x);
    x *= block.factor;
    most = x > most ? x : most;
  }
  const float maximum = maximum_of(most);

  F32x16 sum{};
  for (std::int64_t j = 0; j < end; j += kLanes) {
    F32x16 x;
    load(scores + j, x);
    x = x * block.factor - maximum;
    exp2_approx(x);
    sum += x;
    store(x, weights + j);
  }
  std::fill(weights + end, weights + block.columns, T{});

  step.maximum[row] = maximum;
  if (maximum == before) {
    step.sum[row] += sum_of(sum);
    return;
  }
  const float shrink = std::exp2(before - maximum);
  step.sum[row] = step.sum[row] * shrink + sum_of(sum);
  float* const output = step.output + row * step.head_dim;
  for (std::int64_t i = 0; i < step.head_dim; ++i) output[i] *= shrink;
}

template <class T>
[[gnu::always_inline]] inline void softmax_step_inline(const SoftmaxStep<T>& step) {
  for (std::int64_t row = 0; row < step.block.rows; ++row) {
    if (step.block.visible[row] > 0) {
      softmax_row(step, row);
    } else {
      std::fill_n(step.weights + row * step.block.columns, step.block.columns, T{});
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void gradient_step_inline(const GradientStep<T>& step) {
  const ScoreBlock& block = step.block;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const std::int64_t start = row * block.columns;
    float* const scores = block.scores + start;
    float* const d_weights = step.d_weights + start;
    T* const weights = step.weights + start;
    T* const d_scores = step.d_scores + start;
    const std::int64_t end = mask_tail(scores, block.visible[row], masked_score(block.factor));
    mask_tail(d_weights, block.visible[row], 0.0F);
    const float lse = step.lse[row];
    const float dot = step.dot[row];
    for (std::int64_t j = 0; j < end; j += kLanes) {
      F32x16 x;
      F32x16 d;
      load(scores + j, x);
      load(d_weights + j, d);
      x = x * block.factor - lse;
      exp2_approx(x);
      d = x * (d - dot);
      store(x, weights + j);
      store(d, d_scores + j);
    }
    std::fill(weights + end, weights + block.columns, T{});
    std::fill(d_scores + end, d_scores + block.columns, T{});
  }
}

}  // namespace shiplap::kernels
