#include <memory>

#include "shiplap/base/plugin.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/linear_internal.h"
#include "shiplap/kernels/products_internal.h"

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

}  // namespace

std::unique_ptr<Products> make_products() {
  if (onednn() == nullptr) return make_plain_products();
  return std::unique_ptr<Products>(onednn()->make());
}

std::unique_ptr<LinearEngine> make_linear_engine(const LinearShape& shape) {
  LinearShape as_floats = shape;
  as_floats.type = DType::f32;
  if (onednn() == nullptr || shape.engine == Engine::plain_loops) {
    return make_plain_linear_engine(as_floats);
  }
  for (const LinearShape& way : {shape, as_floats}) {
    std::unique_ptr<LinearEngine> made(onednn()->make_linear(way));
    if (made != nullptr) return made;
  }
  return make_plain_linear_engine(as_floats);
}

std::string_view products_by() { return onednn() == nullptr ? "plain loops" : onednn()->name(); }

}  // namespace shiplap::kernels
