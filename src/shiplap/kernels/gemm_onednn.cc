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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/engines_internal.h"

// From omp.h, which clang-tidy does not find. oneDNN has no setting of its own for this.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int count);

namespace shiplap::kernels {
namespace {

using Memory = dnnl::memory;
using DataType = Memory::data_type;
using Description = dnnl::matmul::primitive_desc;

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

DataType data_type(DType type) {
  switch (type) {
    case DType::f32:
      return DataType::f32;
    case DType::bf16:
      return DataType::bf16;
    case DType::f16:
      return DataType::f16;
    default:
      throw InternalError("no type that oneDNN multiplies");
  }
}

Memory::desc matrix(const Memory::dims& sizes, DType type, const Layout& layout) {
  const Memory::dims strides =
      layout.is_transposed ? Memory::dims{1, layout.stride} : Memory::dims{layout.stride, 1};
  return {sizes, data_type(type), strides};
}

dnnl::primitive_attr attributes_for(Into into) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (into == Into::accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  return attributes;
}

// A primitive with its memory objects, ready to be pointed somewhere.
class Prepared {
 public:
  Prepared(const dnnl::engine& engine, const Description& description)
      : matmul_(description),
        memory_{Memory(description.src_desc(), engine, nullptr),
                Memory(description.weights_desc(), engine, nullptr),
                Memory(description.dst_desc(), engine, nullptr),
                Memory(description.scratchpad_desc(), engine, nullptr)},
        arguments_{{{DNNL_ARG_SRC, memory_[0].get()},
                    {DNNL_ARG_WEIGHTS, memory_[1].get()},
                    {DNNL_ARG_DST, memory_[2].get()},
                    {DNNL_ARG_SCRATCHPAD, memory_[3].get()}}} {}

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
  std::array<Memory, 4> memory_;
  std::array<dnnl_exec_arg_t, 4> arguments_;
};

// Memory for one primitive at a time, on a line of the cache.
class Scratchpad {
 public:
  void grow(std::size_t bytes) {
    if (bytes + kAlignment > bytes_.size()) bytes_.resize(bytes + kAlignment);
  }
  void* start() {
    void* start = bytes_.data();
    std::size_t space = bytes_.size();
    return std::align(kAlignment, 1, start, space);
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::vector<std::byte> bytes_;
};

// The primitives of all products that were seen.
class Primitives {
 public:
  Primitives() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  [[nodiscard]] const dnnl::engine& engine() const { return engine_; }
  [[nodiscard]] dnnl::stream& stream() { return stream_; }
  void forget() { prepared_.clear(); }

  // Nothing if oneDNN cannot do it.
  [[nodiscard]] std::optional<Description> describe(const Product& product,
                                                    const Memory::desc& weights) const {
    try {
      return Description(
          engine_, matrix({product.rows, product.depth}, product.type, product.a), weights,
          matrix({product.rows, product.columns}, DType::f32, {.stride = product.stride_c}),
          attributes_for(product.into));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return std::nullopt;
    }
  }

  // Null if `describe` says nothing, which is asked once.
  template <class Describe>
  Prepared* find(const Product& product, const Describe& describe) {
    if (const auto found = prepared_.find(product); found != prepared_.end()) {
      return found->second.get();
    }
    std::unique_ptr<Prepared> made;
    if (const std::optional<Description> best = describe()) {
      made = std::make_unique<Prepared>(engine_, *best);
      scratchpad_.grow(best->scratchpad_desc().get_size());
    }
    return prepared_.emplace(product, std::move(made)).first->second.get();
  }

  void execute(Prepared& prepared, const Operands& operands) {
    prepared.execute(stream_, {operands.a, operands.b, operands.c, scratchpad_.start()});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Product, std::unique_ptr<Prepared>> prepared_;
  Scratchpad scratchpad_;
};

class OnednnProducts final : public Products {
 public:
  void multiply(const Product& product, const Operands& operands) override {
    const OneThread only;
    Prepared* const prepared = primitives_.find(product, [&] {
      return primitives_.describe(
          product, matrix({product.depth, product.columns}, product.type, product.b));
    });
    // oneDNN has no product of bf16 for processors without AVX-512.
    if (prepared == nullptr) return plain_->multiply(product, operands);
    primitives_.execute(*prepared, operands);
  }

 private:
  Primitives primitives_;
  std::unique_ptr<Products> plain_ = make_plain_products();
};

// The ways that are called so are loops slower than ours.
bool is_slow(const std::string& way) { return way.starts_with("ref"); }

// oneDNN chooses the blocks of the weights for the typical number of rows; the primitives for other
// numbers are then made for these blocks. It has several ways to multiply (for bf16: the tiles of
// AMX, or vectors where there is little to do) that round differently, but each gives a row the
// same bits however many others there are. So the way of the typical number is the only one used.
// It knows no gaps in matrices that are not transposed.
class OnednnLinear final : public LinearEngine {
 public:
  explicit OnednnLinear(const LinearShape& shape) : shape_(shape) {
    const OneThread only;
    const Memory::desc any({shape.depth, shape.columns}, data_type(shape.type),
                           Memory::format_tag::any);
    if (const std::optional<Description> best = primitives_.describe(typical(), any)) use(*best);
  }

  [[nodiscard]] bool is_fast() const { return !way_.empty() && !is_slow(way_); }
  [[nodiscard]] DType type() const override { return shape_.type; }
  [[nodiscard]] std::string_view name() const override { return way_; }

  void prepare(const MatrixView& weights, std::int64_t group) override {
    const OneThread only;
    if (group >= std::ssize(groups_)) groups_.resize(group + 1);
    const Memory::desc here =
        matrix({shape_.depth, shape_.columns}, shape_.type, layout_of(weights));
    if (shape_.packing == Packing::every_call && multiplies_in_place(here)) {
      groups_[group].weights = weights.data;
    } else {
      pack(weights, here, groups_[group]);
    }
  }

  [[nodiscard]] bool can(const Product& product) override {
    const OneThread only;
    return find(product) != nullptr;
  }

  void multiply(const Product& product, const Operands& operands, std::int64_t group) override {
    const OneThread only;
    Prepared* const prepared = find(product);
    ensure(prepared != nullptr, "only what can be multiplied is");
    primitives_.execute(*prepared, {.a = operands.a, .b = groups_[group].weights, .c = operands.c});
  }

 private:
  struct Group {
    Memory packed{nullptr};
    void* weights = nullptr;  // these, or those of the caller
  };

  [[nodiscard]] Product typical() const {
    return {.rows = shape_.typical_rows,
            .columns = shape_.columns,
            .depth = shape_.depth,
            .type = shape_.type,
            .a = {.stride = shape_.depth},
            .stride_c = shape_.columns};
  }

  void use(const Description& best) {
    way_ = best.impl_info_str();
    layout_of_weights_ = best.weights_desc();
    primitives_.forget();
  }

  // Whether there is a fast way to multiply by weights that lie so, which is then used.
  bool multiplies_in_place(const Memory::desc& here) {
    if (here == layout_of_weights_) return true;
    const std::optional<Description> best = primitives_.describe(typical(), here);
    if (!best || is_slow(best->impl_info_str())) return false;
    use(*best);
    return true;
  }

  void pack(const MatrixView& weights, const Memory::desc& here, Group& group) {
    if (!group.packed) group.packed = Memory(layout_of_weights_, primitives_.engine());
    Memory from(here, primitives_.engine(), weights.data);
    dnnl::reorder(from, group.packed).execute(primitives_.stream(), from, group.packed);
    primitives_.stream().wait();
    group.weights = group.packed.get_data_handle();
  }

  // Null if oneDNN cannot do it, or would in another way than usual.
  Prepared* find(const Product& product) {
    return primitives_.find(product, [&] {
      std::optional<Description> best = primitives_.describe(product, layout_of_weights_);
      if (best && best->impl_info_str() != way_) best.reset();
      return best;
    });
  }

  LinearShape shape_;
  Primitives primitives_;
  std::string way_;
  Memory::desc layout_of_weights_;
  std::vector<Group> groups_;
};

Products* make() { return std::make_unique<OnednnProducts>().release(); }

LinearEngine* make_linear(const LinearShape& shape) {
  auto made = std::make_unique<OnednnLinear>(shape);
  return made->is_fast() ? made.release() : nullptr;
}

const char* name() {
  static const std::string text = [] {
    const dnnl_version_t* const numbers = dnnl_version();
    return "oneDNN " + std::to_string(numbers->major) + "." + std::to_string(numbers->minor) + "." +
           std::to_string(numbers->patch);
  }();
  return text.c_str();
}

}  // namespace
}  // namespace shiplap::kernels

// The name by which it is found.
extern "C" const shiplap::kernels::ProductsPlugin shiplap_products_plugin;  // NOLINT
const shiplap::kernels::ProductsPlugin shiplap_products_plugin{
    // NOLINT
    .make = shiplap::kernels::make,
    .make_linear = shiplap::kernels::make_linear,
    .name = shiplap::kernels::name};
