// What products_onednn.cc and linear_onednn.cc share. Part of the plugin only.
#pragma once

#include <array>
#include <cstddef>
#include <dnnl.hpp>
#include <memory>
#include <vector>

#include "shiplap/kernels/products_internal.h"

// From omp.h, which clang-tidy does not find. oneDNN has no setting of its own for this.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int count);

namespace shiplap::kernels {

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

inline Memory::desc matrix(const Memory::dims& sizes, DataType type, const Layout& layout) {
  const Memory::dims strides =
      layout.order == Order::rows ? Memory::dims{layout.stride, 1} : Memory::dims{1, layout.stride};
  return {sizes, type, strides};
}

inline dnnl::primitive_attr attributes_for(Into into) {
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

// In linear_onednn.cc; null if oneDNN has no fast way.
LinearEngine* make_onednn_linear(const LinearShape& shape);

}  // namespace shiplap::kernels
