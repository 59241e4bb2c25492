// The products by plain loops.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/products_internal.h"

namespace shiplap::kernels {
namespace {

float as_float(float value) { return value; }
float as_float(Bf16 value) { return to_float(value); }

class PlainProducts final : public Products {
 public:
  void multiply(const Product& product, const Operands<float>& operands) override {
    multiply_any(product, operands);
  }
  void multiply(const Product& product, const Operands<Bf16>& operands) override {
    multiply_any(product, operands);
  }

 private:
  // b is first copied as floats, by rows and without gaps: it is read once for every row of a.
  template <class T>
  void multiply_any(const Product& product, const Operands<T>& operands) {
    const auto depth = static_cast<std::size_t>(product.depth);
    const auto columns = static_cast<std::size_t>(product.columns);
    row_.resize(std::max(row_.size(), depth));
    b_.resize(std::max(b_.size(), depth * columns));
    copy_b(product, operands.b);
    for (std::int64_t i = 0; i < product.rows; ++i) {
      const bool by_rows = product.a.order == Order::rows;
      const T* from = operands.a + i * (by_rows ? product.a.stride : 1);
      const std::int64_t step = by_rows ? 1 : product.a.stride;
      for (std::size_t k = 0; k < depth; ++k, from += step) row_[k] = as_float(*from);
      float* const c = operands.c + i * product.stride_c;
      if (product.into == Into::overwrite) std::fill_n(c, columns, 0.0F);
      add_rows({.factors = row_.data(),
                .rows = b_.data(),
                .depth = product.depth,
                .columns = product.columns},
               c);
    }
  }

  template <class T>
  void copy_b(const Product& product, const T* from) {
    const bool by_rows = product.b.order == Order::rows;
    const std::int64_t down = by_rows ? product.b.stride : 1;
    const std::int64_t right = by_rows ? 1 : product.b.stride;
    float* to = b_.data();
    for (std::int64_t k = 0; k < product.depth; ++k) {
      for (std::int64_t j = 0; j < product.columns; ++j) {
        *to++ = as_float(from[k * down + j * right]);
      }
    }
  }

  std::vector<float> row_;
  std::vector<float> b_;
};

}  // namespace

// Four rows at a time, so that c is loaded and stored a quarter as often.
void add_rows(const WeightedRows& sum, float* __restrict c) {
  const float* const __restrict factor = sum.factors;
  const float* __restrict b = sum.rows;
  const std::int64_t columns = sum.columns;
  std::int64_t k = 0;
  for (; k + 4 <= sum.depth; k += 4, b += 4 * columns) {
    for (std::int64_t j = 0; j < columns; ++j) {
      c[j] += (factor[k] * b[j] + factor[k + 1] * b[columns + j]) +
              (factor[k + 2] * b[2 * columns + j] + factor[k + 3] * b[3 * columns + j]);
    }
  }
  for (; k < sum.depth; ++k, b += columns) {
    for (std::int64_t j = 0; j < columns; ++j) c[j] += factor[k] * b[j];
  }
}

std::unique_ptr<Products> make_plain_products() { return std::make_unique<PlainProducts>(); }

}  // namespace shiplap::kernels
