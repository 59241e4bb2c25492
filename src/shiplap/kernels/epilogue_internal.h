// What happens to sums on their way from a product into the result.
#pragma once

#include <cstdint>

#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

// before = alpha * sums + beta * c + bias; c = activation(before).
struct EpilogueStep {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const float* sums = nullptr;  // by rows
  std::int64_t stride_sums = 0;
  const float* bias = nullptr;  // may be null
  float alpha = 1;
  float beta = 0;
  Activation activation = Activation::none;
  MatrixView before_activation;  // may be null
  MatrixView c;
};

struct WidenStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  float* to = nullptr;
};

void apply_epilogue(const EpilogueStep& step);
void widen(const WidenStep& step);

}  // namespace shiplap::kernels
