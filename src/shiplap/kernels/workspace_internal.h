// Cache-line aligned buffers, and the workspace of attention.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <vector>

namespace shiplap::kernels {

// Aligned 64-byte vectors are loaded in one access instead of two.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kCacheLine{64};

  CacheLineAllocator() = default;
  template <class U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kCacheLine));
  }
  void deallocate(T* pointer, std::size_t) { ::operator delete(pointer, kCacheLine); }
  friend bool operator==(CacheLineAllocator, CacheLineAllocator) { return true; }
};

template <class T>
using Buffer = std::vector<T, CacheLineAllocator<T>>;

template <class T>
void grow(Buffer<T>& buffer, std::int64_t count) {
  buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(count)));
}

struct WorkspaceSizes {
  std::int64_t rows = 0;     // of a block: queries times the heads that share keys
  std::int64_t columns = 0;  // of a block
  std::int64_t keys = 0;     // of the longest sequence, in whole blocks
  std::int64_t head_dim = 0;
};

// Holds one (sequence, key head) at a time. All matrices are contiguous and row-major: those of
// queries have one row per (head, query) of a block, those of keys one per key.
template <class T>
struct Workspace {
  Buffer<T> queries;
  Buffer<T> d_output;
  Buffer<T> keys;
  Buffer<T> values;
  Buffer<T> rounded_weights;   // for bf16 only
  Buffer<T> rounded_d_scores;  // for bf16 only
  Buffer<float> scores;
  Buffer<float> d_weights;
  Buffer<float> sums;  // forward: the output; backward: d_queries
  Buffer<float> d_keys;
  Buffer<float> d_values;
  Buffer<float> lse;  // forward: the running maximum
  Buffer<float> dot;  // forward: the running sum
  Buffer<std::int32_t> visible;

  void grow_forward(const WorkspaceSizes& sizes) {
    grow(queries, sizes.rows * sizes.head_dim);
    grow(keys, sizes.keys * sizes.head_dim);
    grow(values, sizes.keys * sizes.head_dim);
    grow(scores, sizes.rows * sizes.columns);
    grow(sums, sizes.rows * sizes.head_dim);
    grow(lse, sizes.rows);
    grow(dot, sizes.rows);
    grow(visible, sizes.rows);
    if constexpr (!std::is_same_v<T, float>) grow(rounded_weights, sizes.rows * sizes.columns);
  }

  void grow_backward(const WorkspaceSizes& sizes) {
    grow_forward(sizes);
    grow(d_output, sizes.rows * sizes.head_dim);
    grow(d_weights, sizes.rows * sizes.columns);
    grow(d_keys, sizes.keys * sizes.head_dim);
    grow(d_values, sizes.keys * sizes.head_dim);
    if constexpr (!std::is_same_v<T, float>) grow(rounded_d_scores, sizes.rows * sizes.columns);
  }

  // Operands of GEMMs: f32 in place, bf16 rounded.
  T* weights() {
    if constexpr (std::is_same_v<T, float>) {
      return scores.data();
    } else {
      return rounded_weights.data();
    }
  }
  T* d_scores() {
    if constexpr (std::is_same_v<T, float>) {
      return d_weights.data();
    } else {
      return rounded_d_scores.data();
    }
  }
};

}  // namespace shiplap::kernels
