// The softmax of a block of scores, between the GEMMs of attention, forward and backward.
//
// A block has one row per query and one column per key. Only the first visible[row] columns of a
// row count; behind them the weights are zero. The number of columns is a multiple of kLanes.
// Exponents are to base 2: `factor` is the scale of the scores times log2(e).
#pragma once

#include <cstdint>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/simd_internal.h"

namespace shiplap::kernels {

struct ScoreBlock {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const std::int32_t* visible = nullptr;
  float factor = 0;
  float* scores = nullptr;  // may be changed
};

// Online softmax, one block: weights = 2^(factor * scores - maximum), with the maximum
// of all the blocks so far; the sum of the weights and the output of the earlier blocks are
// rescaled to the new maximum. For float, `weights` may be the scores themselves. For bf16 the
// weights are rounded because they are operands of the next GEMM; their sum is that of the floats.
template <class T>
struct SoftmaxStep {
  ScoreBlock block;
  T* weights = nullptr;
  float* maximum = nullptr;  // per row, to base 2
  float* sum = nullptr;      // per row
  float* output = nullptr;   // per row `head_dim` numbers
  std::int64_t head_dim = 0;
};

// Backward: weights = 2^(factor * scores - lse) and d_scores = weights * (d_weights - dot). For
// float, both results may replace their sources.
template <class T>
struct GradientStep {
  ScoreBlock block;
  const float* lse = nullptr;  // per row, to base 2
  const float* dot = nullptr;  // per row: the product of the output and its gradient
  float* d_weights = nullptr;  // may be changed
  T* weights = nullptr;
  T* d_scores = nullptr;
};

void softmax_step(const SoftmaxStep<float>& step);
void softmax_step(const SoftmaxStep<Bf16>& step);
void gradient_step(const GradientStep<float>& step);
void gradient_step(const GradientStep<Bf16>& step);

}  // namespace shiplap::kernels
