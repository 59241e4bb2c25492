// GEMM backend: oneDNN's matmul.
//
// A GEMM of attention takes a few microseconds, so the overhead must be small: a primitive is
// created once per shape, and a call only changes the pointers of its memory objects. The
// scratchpad is managed here, because the library's own belongs to the thread that created the
// primitive.
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

// Scope in which oneDNN uses only the calling thread. A block is too small to gain from more, ranks
// that are threads would each start an OpenMP team, and a sum split over threads would depend on
// their number. OpenMP keeps the number per thread.
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
      throw InternalError("unsupported dtype of a oneDNN matmul");
  }
}

Memory::desc matrix(const Memory::dims& sizes, DType type, const Layout& layout) {
  const Memory::dims strides =
      layout.is_transposed ? Memory::dims{1, layout.stride} : Memory::dims{layout.stride, 1};
  return {sizes, data_type(type), strides};
}

dnnl::primitive_attr attributes_for(WriteMode into) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (into == WriteMode::accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  return attributes;
}

// A primitive with its memory objects, whose pointers are set per call.
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

// Memory for one primitive at a time, aligned to a cache line.
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

// The cache of primitives, by GEMM.
class Primitives {
 public:
  Primitives() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  [[nodiscard]] const dnnl::engine& engine() const { return engine_; }
  [[nodiscard]] dnnl::stream& stream() { return stream_; }
  void forget() { prepared_.clear(); }

  // Returns nothing if oneDNN does not support it.
  [[nodiscard]] std::optional<Description> describe(const GemmDesc& desc,
                                                    const Memory::desc& weights) const {
    try {
      return Description(engine_, matrix({desc.m, desc.k}, desc.type, desc.a), weights,
                         matrix({desc.m, desc.n}, DType::f32, {.stride = desc.stride_c}),
                         attributes_for(desc.write_mode));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return std::nullopt;
    }
  }

  // Returns null if `describe` returns nothing; that is cached too.
  template <class Describe>
  Prepared* find(const GemmDesc& desc, const Describe& describe) {
    if (const auto found = prepared_.find(desc); found != prepared_.end()) {
      return found->second.get();
    }
    std::unique_ptr<Prepared> made;
    if (const std::optional<Description> best = describe()) {
      made = std::make_unique<Prepared>(engine_, *best);
      scratchpad_.grow(best->scratchpad_desc().get_size());
    }
    return prepared_.emplace(desc, std::move(made)).first->second.get();
  }

  void execute(Prepared& prepared, const Operands& operands) {
    prepared.execute(stream_, {operands.a, operands.b, operands.c, scratchpad_.start()});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<GemmDesc, std::unique_ptr<Prepared>> prepared_;
  Scratchpad scratchpad_;
};

class OnednnGemm final : public GemmEngine {
 public:
  void multiply(const GemmDesc& desc, const Operands& operands) override {
    const OneThread only;
    Prepared* const prepared = primitives_.find(desc, [&] {
      return primitives_.describe(desc, matrix({desc.k, desc.n}, desc.type, desc.b));
    });
    // oneDNN has no bf16 matmul for processors without AVX-512.
    if (prepared == nullptr) return reference_->multiply(desc, operands);
    primitives_.execute(*prepared, operands);
  }

 private:
  Primitives primitives_;
  std::unique_ptr<GemmEngine> reference_ = make_reference_gemm_engine();
};

// oneDNN's reference implementations are slower than the loops of gemm_reference.cc.
bool is_slow(const std::string& implementation) { return implementation.starts_with("ref"); }

// Processors with AVX-512 but without its bf16 instructions get a BLAS-like GEMM. The order of its
// sums depends on the number of rows: a row alone has other bits than in a chunk.
bool depends_on_rows(const std::string& implementation) {
  return implementation == "gemm:jit:bf16";
}

// Whether a LinearEngine may use it.
bool is_usable(const std::string& implementation) {
  return !is_slow(implementation) && !depends_on_rows(implementation);
}

// oneDNN chooses the blocked layout of the weights for the typical number of rows; the primitives
// for other numbers use the same layout. It has several implementations (for bf16: AMX tiles, or
// vectors for small shapes) that round differently, but within each a row has the same bits however
// many others there are. So only the implementation of the typical number is used. It does not
// support gaps in matrices that are not transposed.
class OnednnLinear final : public LinearEngine {
 public:
  explicit OnednnLinear(const LinearShape& shape) : shape_(shape) {
    const OneThread only;
    const Memory::desc any({shape.k, shape.n}, data_type(shape.type), Memory::format_tag::any);
    if (const std::optional<Description> best = primitives_.describe(typical(), any)) use(*best);
  }

  [[nodiscard]] bool is_fast() const {
    return !implementation_.empty() && is_usable(implementation_);
  }
  [[nodiscard]] DType type() const override { return shape_.type; }
  [[nodiscard]] std::string_view name() const override { return implementation_; }

  void prepare(const MatrixView& weights, std::int64_t group) override {
    const OneThread only;
    if (group >= std::ssize(groups_)) groups_.resize(group + 1);
    const Memory::desc here = matrix({shape_.k, shape_.n}, shape_.type, layout_of(weights));
    if (shape_.packing == Packing::every_call && multiplies_in_place(here)) {
      groups_[group].weights = weights.data;
    } else {
      pack(weights, here, groups_[group]);
    }
  }

  [[nodiscard]] bool supports(const GemmDesc& desc) override {
    const OneThread only;
    return find(desc) != nullptr;
  }

  void multiply(const GemmDesc& desc, const Operands& operands, std::int64_t group) override {
    const OneThread only;
    Prepared* const prepared = find(desc);
    ensure(prepared != nullptr, "the GEMM is supported");
    primitives_.execute(*prepared, {.a = operands.a, .b = groups_[group].weights, .c = operands.c});
  }

 private:
  struct Group {
    Memory packed{nullptr};
    void* weights = nullptr;  // packed, or the caller's
  };

  [[nodiscard]] GemmDesc typical() const {
    return {.m = shape_.typical_rows,
            .n = shape_.n,
            .k = shape_.k,
            .type = shape_.type,
            .a = {.stride = shape_.k},
            .stride_c = shape_.n};
  }

  void use(const Description& best) {
    implementation_ = best.impl_info_str();
    layout_of_weights_ = best.weights_desc();
    primitives_.forget();
  }

  // Returns whether there is a fast implementation for weights in this layout, which is then used.
  bool multiplies_in_place(const Memory::desc& here) {
    if (here == layout_of_weights_) return true;
    const std::optional<Description> best = primitives_.describe(typical(), here);
    if (!best || !is_usable(best->impl_info_str())) return false;
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

  // Returns null if oneDNN does not support it with the chosen implementation.
  Prepared* find(const GemmDesc& desc) {
    return primitives_.find(desc, [&] {
      std::optional<Description> best = primitives_.describe(desc, layout_of_weights_);
      if (best && best->impl_info_str() != implementation_) best.reset();
      return best;
    });
  }

  LinearShape shape_;
  Primitives primitives_;
  std::string implementation_;
  Memory::desc layout_of_weights_;
  std::vector<Group> groups_;
};

GemmEngine* make() { return std::make_unique<OnednnGemm>().release(); }

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

// The symbol that gemm.cc looks up.
extern "C" const shiplap::kernels::GemmPlugin shiplap_gemm_plugin;  // NOLINT
const shiplap::kernels::GemmPlugin shiplap_gemm_plugin{             // NOLINT
                                                       .make = shiplap::kernels::make,
                                                       .make_linear = shiplap::kernels::make_linear,
                                                       .name = shiplap::kernels::name};
