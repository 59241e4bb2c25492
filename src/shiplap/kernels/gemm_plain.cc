// The products by plain loops.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/engines_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

// c += factors b, where b has `depth` rows that lie without gaps. Four rows at a time, so that c is
// loaded and stored a quarter as often.
void add_rows(const float* __restrict factor, const float* __restrict b, const Product& product,
              float* __restrict c) {
  const std::int64_t columns = product.columns;
  std::int64_t k = 0;
  for (; k + 4 <= product.depth; k += 4, b += 4 * columns) {
    for (std::int64_t j = 0; j < columns; ++j) {
      c[j] += (factor[k] * b[j] + factor[k + 1] * b[columns + j]) +
              (factor[k + 2] * b[2 * columns + j] + factor[k + 3] * b[3 * columns + j]);
    }
  }
  for (; k < product.depth; ++k, b += columns) {
    for (std::int64_t j = 0; j < columns; ++j) c[j] += factor[k] * b[j];
  }
}

// By a `b` of floats without gaps.
void multiply_rows(const Product& product, const Operands& operands, Buffer<float>& floats) {
  const ConstMatrixView a{.data = operands.a,
                          .type = product.type,
                          .rows = product.rows,
                          .columns = product.depth,
                          .stride = product.a.stride,
                          .is_transposed = product.a.is_transposed};
  const bool is_copied = a.is_transposed || a.type != DType::f32;
  if (is_copied) grow(floats, product.depth);
  for (std::int64_t i = 0; i < product.rows; ++i) {
    if (is_copied) copy_as_floats(a.some_rows(i, 1), floats.data());
    float* const c = operands.c + i * product.stride_c;
    if (product.into == Into::overwrite) std::fill_n(c, product.columns, 0.0F);
    add_rows(is_copied ? floats.data() : static_cast<const float*>(a.at(i)),
             static_cast<const float*>(operands.b), product, c);
  }
}

// b is first copied: it is read once for every row of a.
class PlainProducts final : public Products {
 public:
  void multiply(const Product& product, const Operands& operands) override {
    grow(b_, product.depth * product.columns);
    copy_as_floats({.data = operands.b,
                    .type = product.type,
                    .rows = product.depth,
                    .columns = product.columns,
                    .stride = product.b.stride,
                    .is_transposed = product.b.is_transposed},
                   b_.data());
    multiply_rows(product, {.a = operands.a, .b = b_.data(), .c = operands.c}, row_);
  }

 private:
  Buffer<float> row_;
  Buffer<float> b_;
};

class PlainLinear final : public LinearEngine {
 public:
  [[nodiscard]] DType type() const override { return DType::f32; }
  [[nodiscard]] std::string_view name() const override { return "plain loops"; }

  void prepare(const MatrixView& weights, std::int64_t group) override {
    if (group >= std::ssize(weights_)) weights_.resize(group + 1);
    grow(weights_[group], weights.rows * weights.columns);
    copy_as_floats(weights, weights_[group].data());
  }

  [[nodiscard]] bool can(const Product& product) override { return !product.a.is_transposed; }

  void multiply(const Product& product, const Operands& operands, std::int64_t group) override {
    ensure(can(product), "plain loops multiply rows that lie as such");
    multiply_rows(product, {.a = operands.a, .b = weights_[group].data(), .c = operands.c}, row_);
  }

 private:
  std::vector<Buffer<float>> weights_;  // by group
  Buffer<float> row_;
};

}  // namespace

std::unique_ptr<Products> make_plain_products() { return std::make_unique<PlainProducts>(); }

std::unique_ptr<LinearEngine> make_plain_linear_engine() { return std::make_unique<PlainLinear>(); }

}  // namespace shiplap::kernels
