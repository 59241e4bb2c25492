#include "shiplap/kernels/gemm.h"

#include <algorithm>

#include "shiplap/base/plugin.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/engines_internal.h"

namespace shiplap::kernels {
namespace {

// Returns null if oneDNN is missing, or the plugin has another version.
const GemmPlugin* onednn() {
  static const GemmPlugin* const found = [] {
    const auto* const plugin = static_cast<const GemmPlugin*>(
        load_plugin("shiplap_onednn.so", "shiplap_gemm_plugin").address);
    return plugin != nullptr && plugin->version == kGemmPluginVersion ? plugin : nullptr;
  }();
  return found;
}

void multiply_into(GemmEngine& engine, const MatrixView& a, const MatrixView& b,
                   const MatrixView& c, WriteMode into) {
  ensure(a.columns == b.rows, "the inner sizes of a GEMM agree");
  if (a.rows == 0 || b.columns == 0) return;
  const std::int64_t stride = stride_or(c.stride, b.columns);
  auto* const to = static_cast<float*>(c.data);
  if (a.columns == 0) {
    for (std::int64_t i = 0; i < a.rows && into == WriteMode::overwrite; ++i) {
      std::fill_n(to + i * stride, b.columns, 0.0F);
    }
    return;
  }
  engine.multiply({.m = a.rows,
                   .n = b.columns,
                   .k = a.columns,
                   .a = layout_of(a.with_strides()),
                   .b = layout_of(b.with_strides()),
                   .stride_c = stride,
                   .write_mode = into},
                  {.a = a.data, .b = b.data, .c = to});
}

}  // namespace

Gemm::Gemm() : gemm_(make_gemm_engine()) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::multiply(const MatrixView& a, const MatrixView& b, const MatrixView& c) {
  multiply_into(*gemm_, a, b, c, WriteMode::overwrite);
}

void Gemm::multiply_add(const MatrixView& a, const MatrixView& b, const MatrixView& c) {
  multiply_into(*gemm_, a, b, c, WriteMode::accumulate);
}

std::unique_ptr<GemmEngine> make_gemm_engine() {
  if (onednn() == nullptr) return make_reference_gemm_engine();
  return std::unique_ptr<GemmEngine>(onednn()->make());
}

std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape) {
  LinearShape as_floats = shape;
  as_floats.type = DType::f32;
  if (onednn() == nullptr || shape.engine == Engine::reference) {
    return make_reference_linear_engine();
  }
  for (const LinearShape& candidate : {shape, as_floats}) {
    std::unique_ptr<LinearEngine> made(onednn()->make_linear(candidate));
    if (made != nullptr) return made;
  }
  return make_reference_linear_engine();
}

std::string_view gemm_backend_name() {
  return onednn() == nullptr ? "reference" : onednn()->name();
}

}  // namespace shiplap::kernels
