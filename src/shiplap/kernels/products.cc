#include <memory>

#include "shiplap/base/plugin.h"
#include "shiplap/kernels/attention.h"
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

std::string_view products_by() { return onednn() == nullptr ? "plain loops" : onednn()->name(); }

}  // namespace shiplap::kernels
