#include "shiplap/kernels/gemm.h"

#include <algorithm>

#include "shiplap/base/plugin.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/engines_internal.h"

namespace shiplap::kernels {
namespace {

// Null where there is no oneDNN, or one for another version of us.
const ProductsPlugin* onednn() {
  static const ProductsPlugin* const found = [] {
    const auto* const plugin = static_cast<const ProductsPlugin*>(
        load_plugin("shiplap_onednn.so", "shiplap_products_plugin").address);
    return plugin != nullptr && plugin->version == kProductsPluginVersion ? plugin : nullptr;
  }();
  return found;
}

void multiply_into(Products& products, const MatrixView& a, const MatrixView& b,
                   const MatrixView& c, Into into) {
  ensure(a.columns == b.rows, "the inner sizes of a product agree");
  if (a.rows == 0 || b.columns == 0) return;
  const std::int64_t stride = stride_or(c.stride, b.columns);
  auto* const to = static_cast<float*>(c.data);
  if (a.columns == 0) {
    for (std::int64_t i = 0; i < a.rows && into == Into::overwrite; ++i) {
      std::fill_n(to + i * stride, b.columns, 0.0F);
    }
    return;
  }
  products.multiply({.rows = a.rows,
                     .columns = b.columns,
                     .depth = a.columns,
                     .a = layout_of(a.with_strides()),
                     .b = layout_of(b.with_strides()),
                     .stride_c = stride,
                     .into = into},
                    {.a = a.data, .b = b.data, .c = to});
}

}  // namespace

Gemm::Gemm() : products_(make_products()) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::multiply(const MatrixView& a, const MatrixView& b, const MatrixView& c) {
  multiply_into(*products_, a, b, c, Into::overwrite);
}

void Gemm::multiply_add(const MatrixView& a, const MatrixView& b, const MatrixView& c) {
  multiply_into(*products_, a, b, c, Into::accumulate);
}

std::unique_ptr<Products> make_products() {
  if (onednn() == nullptr) return make_plain_products();
  return std::unique_ptr<Products>(onednn()->make());
}

std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape) {
  LinearShape as_floats = shape;
  as_floats.type = DType::f32;
  if (onednn() == nullptr || shape.engine == Engine::plain_loops) {
    return make_plain_linear_engine();
  }
  for (const LinearShape& way : {shape, as_floats}) {
    std::unique_ptr<LinearEngine> made(onednn()->make_linear(way));
    if (made != nullptr) return made;
  }
  return make_plain_linear_engine();
}

std::string_view products_by() { return onednn() == nullptr ? "plain loops" : onednn()->name(); }

}  // namespace shiplap::kernels
