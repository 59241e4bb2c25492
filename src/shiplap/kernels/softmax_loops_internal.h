// The loops of softmax_internal.h, inlined into whoever includes them, so that they can be compiled
// for several processors.
//
// They are written with explicit vectors: a sum of floats is vectorized only if one says how it is
// to be split, and it must be split in the same way everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "shiplap/kernels/lanes_internal.h"
#include "shiplap/kernels/softmax_internal.h"

namespace shiplap::kernels {

// Halves that meet halves take four steps instead of sixteen that wait for each other.
template <class Function>
[[gnu::always_inline]] inline float fold(const Lanes& lanes, Function function) {
  float values[kLanes];
  store(lanes, values);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) values[i] = function(values[i], values[i + half]);
  }
  return values[0];
}

[[gnu::always_inline]] inline float sum_of(const Lanes& lanes) {
  return fold(lanes, [](float a, float b) { return a + b; });
}

[[gnu::always_inline]] inline float maximum_of(const Lanes& lanes) {
  return fold(lanes, [](float a, float b) { return a < b ? b : a; });
}

// Hides what follows the visible columns in their last vector, and says where that ends.
[[gnu::always_inline]] inline std::int64_t hide(float* row, std::int64_t visible, float hidden) {
  const std::int64_t end = (visible + kLanes - 1) / kLanes * kLanes;
  std::fill(row + visible, row + end, hidden);
  return end;
}

// A score that no weight comes from.
[[gnu::always_inline]] inline float hidden_score(float factor) {
  return std::copysign(std::numeric_limits<float>::infinity(), -factor);
}

template <class T>
[[gnu::always_inline]] inline void softmax_row(const SoftmaxStep<T>& step, std::int64_t row) {
  const ScoreBlock& block = step.block;
  float* const scores = block.scores + row * block.columns;
  T* const weights = step.weights + row * block.columns;
  const std::int64_t end = hide(scores, block.visible[row], hidden_score(block.factor));

  const float before = step.maximum[row];
  Lanes most = Lanes{} + before;
  for (std::int64_t j = 0; j < end; j += kLanes) {
    Lanes x;
    load(scores + j, x);
    x *= block.factor;
    most = x > most ? x : most;
  }
  const float maximum = maximum_of(most);

  Lanes sum{};
  for (std::int64_t j = 0; j < end; j += kLanes) {
    Lanes x;
    load(scores + j, x);
    x = x * block.factor - maximum;
    power_of_two(x);
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
[[gnu::always_inline]] inline void softmax_step_here(const SoftmaxStep<T>& step) {
  for (std::int64_t row = 0; row < step.block.rows; ++row) {
    if (step.block.visible[row] > 0) {
      softmax_row(step, row);
    } else {
      std::fill_n(step.weights + row * step.block.columns, step.block.columns, T{});
    }
  }
}

template <class T>
[[gnu::always_inline]] inline void gradient_step_here(const GradientStep<T>& step) {
  const ScoreBlock& block = step.block;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const std::int64_t start = row * block.columns;
    float* const scores = block.scores + start;
    float* const d_weights = step.d_weights + start;
    T* const weights = step.weights + start;
    T* const d_scores = step.d_scores + start;
    const std::int64_t end = hide(scores, block.visible[row], hidden_score(block.factor));
    hide(d_weights, block.visible[row], 0.0F);
    const float lse = step.lse[row];
    const float dot = step.dot[row];
    for (std::int64_t j = 0; j < end; j += kLanes) {
      Lanes x;
      Lanes d;
      load(scores + j, x);
      load(d_weights + j, d);
      x = x * block.factor - lse;
      power_of_two(x);
      d = x * (d - dot);
      store(x, weights + j);
      store(d, d_scores + j);
    }
    std::fill(weights + end, weights + block.columns, T{});
    std::fill(d_scores + end, d_scores + block.columns, T{});
  }
}

}  // namespace shiplap::kernels
