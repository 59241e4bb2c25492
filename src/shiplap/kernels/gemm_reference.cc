// GEMM backend: reference loops.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/engines_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

// c += factor b, where b is k x n and contiguous. Four rows at a time, so that c is loaded and
// stored a quarter as often.
void add_rows(const float* __restrict factor, const float* __restrict b, const GemmDesc& desc,
              float* __restrict c) {
  const std::int64_t n = desc.n;
  std::int64_t k = 0;
  for (; k + 4 <= desc.k; k += 4, b += 4 * n) {
    for (std::int64_t j = 0; j < n; ++j) {
      c[j] += (factor[k] * b[j] + factor[k + 1] * b[n + j]) +
              (factor[k + 2] * b[2 * n + j] + factor[k + 3] * b[3 * n + j]);
    }
  }
  for (; k < desc.k; ++k, b += n) {
    for (std::int64_t j = 0; j < n; ++j) c[j] += factor[k] * b[j];
  }
}

// REQUIRES: b is f32 and contiguous.
void multiply_rows(const GemmDesc& desc, const Operands& operands, Buffer<float>& floats) {
  const ConstMatrixView a{.data = operands.a,
                          .type = desc.type,
                          .rows = desc.m,
                          .columns = desc.k,
                          .stride = desc.a.stride,
                          .is_transposed = desc.a.is_transposed};
  const bool is_copied = a.is_transposed || a.type != DType::f32;
  if (is_copied) grow(floats, desc.k);
  for (std::int64_t i = 0; i < desc.m; ++i) {
    if (is_copied) copy_as_floats(a.slice_rows(i, 1), floats.data());
    float* const c = operands.c + i * desc.stride_c;
    if (desc.write_mode == WriteMode::overwrite) std::fill_n(c, desc.n, 0.0F);
    add_rows(is_copied ? floats.data() : static_cast<const float*>(a.at(i)),
             static_cast<const float*>(operands.b), desc, c);
  }
}

// b is copied first, since it is read once per row of a.
class ReferenceGemm final : public GemmEngine {
 public:
  void multiply(const GemmDesc& desc, const Operands& operands) override {
    grow(b_, desc.k * desc.n);
    copy_as_floats({.data = operands.b,
                    .type = desc.type,
                    .rows = desc.k,
                    .columns = desc.n,
                    .stride = desc.b.stride,
                    .is_transposed = desc.b.is_transposed},
                   b_.data());
    multiply_rows(desc, {.a = operands.a, .b = b_.data(), .c = operands.c}, row_);
  }

 private:
  Buffer<float> row_;
  Buffer<float> b_;
};

class ReferenceLinear final : public LinearEngine {
 public:
  [[nodiscard]] DType type() const override { return DType::f32; }
  [[nodiscard]] std::string_view name() const override { return "reference"; }

  void prepare(const MatrixView& weights, std::int64_t group) override {
    if (group >= std::ssize(weights_)) weights_.resize(group + 1);
    grow(weights_[group], weights.rows * weights.columns);
    copy_as_floats(weights, weights_[group].data());
  }

  [[nodiscard]] bool supports(const GemmDesc& desc) override { return !desc.a.is_transposed; }

  void multiply(const GemmDesc& desc, const Operands& operands, std::int64_t group) override {
    ensure(supports(desc), "the reference multiplies row-major a");
    multiply_rows(desc, {.a = operands.a, .b = weights_[group].data(), .c = operands.c}, row_);
  }

 private:
  std::vector<Buffer<float>> weights_;  // by group
  Buffer<float> row_;
};

}  // namespace

std::unique_ptr<GemmEngine> make_reference_gemm_engine() {
  return std::make_unique<ReferenceGemm>();
}

std::unique_ptr<LinearEngine> make_reference_linear_engine() {
  return std::make_unique<ReferenceLinear>();
}

}  // namespace shiplap::kernels
