#include "shiplap/kernels/gemm.h"

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/kernels/products_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

void multiply_into(Products& products, const Matrix& a, const Matrix& b, const ProductAt& c,
                   Into into) {
  ensure(a.columns == b.rows, "the inner sizes of a product agree");
  if (a.rows == 0 || b.columns == 0) return;
  if (a.columns == 0) {
    for (std::int64_t i = 0; i < a.rows && into == Into::overwrite; ++i) {
      std::fill_n(c.data + i * c.stride, b.columns, 0.0F);
    }
    return;
  }
  products.multiply({.rows = a.rows,
                     .columns = b.columns,
                     .depth = a.columns,
                     .a = layout_of(a.is_transposed, a.stride),
                     .b = layout_of(b.is_transposed, b.stride),
                     .stride_c = c.stride,
                     .into = into},
                    Operands<float>{a.data, b.data, c.data});
}

}  // namespace

struct Gemm::State {
  std::unique_ptr<Products> products = make_products();
};

Gemm::Gemm() : state_(std::make_unique<State>()) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::multiply(const Matrix& a, const Matrix& b, const ProductAt& c) {
  multiply_into(*state_->products, a, b, c, Into::overwrite);
}

void Gemm::multiply_add(const Matrix& a, const Matrix& b, const ProductAt& c) {
  multiply_into(*state_->products, a, b, c, Into::accumulate);
}

}  // namespace shiplap::kernels
