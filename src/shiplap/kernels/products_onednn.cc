// The products by oneDNN's matmul.
//
// A product of attention takes a few microseconds, so nothing else may: a primitive is made once
// per shape, and a call only changes the pointers of its memory objects. The scratchpad is ours,
// because the library's own belongs to the thread that made the primitive.
#include <array>
#include <cstddef>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/kernels/products_internal.h"

// From omp.h, which clang-tidy does not find. oneDNN has no setting of its own for this.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int count);

namespace shiplap::kernels {
namespace {

using Memory = dnnl::memory;
using DataType = Memory::data_type;

// While one lives, oneDNN uses no thread but the caller's. A block is too small to gain from more,
// ranks that are threads would each start a team of their own, and a sum split between threads
// would have other bits on another number of them. OpenMP keeps the number per thread.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

Memory::desc describe(const Memory::dims& sizes, DataType type, const Layout& layout) {
  const Memory::dims strides =
      layout.order == Order::rows ? Memory::dims{layout.stride, 1} : Memory::dims{1, layout.stride};
  return {sizes, type, strides};
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const Product& product,
                                      DataType type) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (product.into == Into::accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  return {engine, describe({product.rows, product.depth}, type, product.a),
          describe({product.depth, product.columns}, type, product.b),
          describe({product.rows, product.columns}, DataType::f32, {.stride = product.stride_c}),
          attributes};
}

// A primitive with its memory objects, ready to be pointed somewhere.
class Prepared {
 public:
  Prepared(const dnnl::engine& engine, const dnnl::matmul::primitive_desc& description)
      : matmul_(description),
        scratchpad_bytes_(description.scratchpad_desc().get_size()),
        memory_{Memory(description.src_desc(), engine, nullptr),
                Memory(description.weights_desc(), engine, nullptr),
                Memory(description.dst_desc(), engine, nullptr),
                Memory(description.scratchpad_desc(), engine, nullptr)},
        arguments_{{{DNNL_ARG_SRC, memory_[0].get()},
                    {DNNL_ARG_WEIGHTS, memory_[1].get()},
                    {DNNL_ARG_DST, memory_[2].get()},
                    {DNNL_ARG_SCRATCHPAD, memory_[3].get()}}} {}

  [[nodiscard]] std::size_t scratchpad_bytes() const { return scratchpad_bytes_; }

  // The C++ interface would allocate a list of arguments for every call.
  void execute(const dnnl::stream& stream, const std::array<void*, 4>& pointers) {
    for (std::size_t i = 0; i < pointers.size(); ++i) memory_[i].set_data_handle(pointers[i]);
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(matmul_.get(), stream.get(), static_cast<int>(arguments_.size()),
                               arguments_.data()),
        "oneDNN could not multiply");
  }

 private:
  dnnl::matmul matmul_;
  std::size_t scratchpad_bytes_;
  std::array<Memory, 4> memory_;
  std::array<dnnl_exec_arg_t, 4> arguments_;
};

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
    prepared->execute(stream_, {operands.a, operands.b, operands.c, scratchpad_start()});
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
    if (made != nullptr) {
      const std::size_t bytes = made->scratchpad_bytes() + kAlignment;
      if (bytes > scratchpad_.size()) scratchpad_.resize(bytes);
    }
    return prepared_.emplace(key, std::move(made)).first->second.get();
  }

  void* scratchpad_start() {
    void* start = scratchpad_.data();
    std::size_t space = scratchpad_.size();
    return std::align(kAlignment, 1, start, space);
  }

  static constexpr std::size_t kAlignment = 64;

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<std::pair<DataType, Product>, std::unique_ptr<Prepared>> prepared_;
  std::vector<std::byte> scratchpad_;
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
const shiplap::kernels::ProductsPlugin shiplap_products_plugin{             // NOLINT
                                                               .make = shiplap::kernels::make,
                                                               .name = shiplap::kernels::name};
