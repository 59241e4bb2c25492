// The epilogue of a GEMM, and conversion to f32.
#pragma once

#include <cstdint>

#include "shiplap/kernels/linear.h"

namespace shiplap::kernels {

// pre = alpha * sums + beta * c + bias; c = activation(pre).
struct EpilogueStep {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  const float* sums = nullptr;  // row-major
  std::int64_t stride_sums = 0;
  const float* bias = nullptr;  // may be null
  float alpha = 1;
  float beta = 0;
  Activation activation = Activation::none;
  MatrixView pre_activation;  // may be null
  MatrixView c;
};

struct ConvertStep {
  const void* from = nullptr;
  DType type = DType::f32;
  std::int64_t count = 0;
  float* to = nullptr;
};

void apply_epilogue(const EpilogueStep& step);
void convert_to_f32(const ConvertStep& step);

}  // namespace shiplap::kernels
