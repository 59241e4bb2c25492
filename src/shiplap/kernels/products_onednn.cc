// The products by oneDNN's matmul.
//
// A product of attention takes a few microseconds, so nothing else may: a primitive is made once
// per shape, and a call only changes the pointers of its memory objects. The scratchpad is ours,
// because the library's own belongs to the thread that made the primitive.
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "shiplap/kernels/onednn_internal.h"
#include "shiplap/kernels/products_internal.h"

namespace shiplap::kernels {
namespace {

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const Product& product,
                                      DataType type) {
  return {engine, matrix({product.rows, product.depth}, type, product.a),
          matrix({product.depth, product.columns}, type, product.b),
          matrix({product.rows, product.columns}, DataType::f32, {.stride = product.stride_c}),
          attributes_for(product.into)};
}

class OnednnProducts final : public Products {
 public:
  OnednnProducts() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  void multiply(const Product& product, const Operands<float>& operands) override {
    multiply_any(product, DataType::f32, operands);
  }
  void multiply(const Product& product, const Operands<Bf16>& operands) override {
    multiply_any(product, DataType::bf16, operands);
  }

 private:
  template <class T>
  void multiply_any(const Product& product, DataType type, const Operands<T>& operands) {
    const OneThread only;
    Prepared* const prepared = prepare(product, type);
    // oneDNN has no product of bf16 for processors without AVX-512.
    if (prepared == nullptr) return plain_->multiply(product, operands);
    prepared->execute(stream_, {operands.a, operands.b, operands.c, scratchpad_.start()});
    stream_.wait();
  }

  // Null if oneDNN cannot do it.
  Prepared* prepare(const Product& product, DataType type) {
    const std::pair key(type, product);
    if (const auto found = prepared_.find(key); found != prepared_.end()) {
      return found->second.get();
    }
    std::unique_ptr<Prepared> made;
    try {
      made = std::make_unique<Prepared>(engine_, describe(engine_, product, type));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
    if (made != nullptr) scratchpad_.grow(made->scratchpad_bytes());
    return prepared_.emplace(key, std::move(made)).first->second.get();
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<std::pair<DataType, Product>, std::unique_ptr<Prepared>> prepared_;
  Scratchpad scratchpad_;
  std::unique_ptr<Products> plain_ = make_plain_products();
};

std::string version() {
  const dnnl_version_t* const numbers = dnnl_version();
  return "oneDNN " + std::to_string(numbers->major) + "." + std::to_string(numbers->minor) + "." +
         std::to_string(numbers->patch);
}

Products* make() { return std::make_unique<OnednnProducts>().release(); }

const char* name() {
  static const std::string text = version();
  return text.c_str();
}

}  // namespace

}  // namespace shiplap::kernels

// The name by which it is found.
extern "C" const shiplap::kernels::ProductsPlugin shiplap_products_plugin;  // NOLINT
const shiplap::kernels::ProductsPlugin shiplap_products_plugin{
    // NOLINT
    .make = shiplap::kernels::make,
    .make_linear = shiplap::kernels::make_onednn_linear,
    .name = shiplap::kernels::name};
