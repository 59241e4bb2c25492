// Matrices on their way into products: strides, copies and wider numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/products_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {

inline Layout layout_of(bool is_transposed, std::int64_t stride) {
  return {.order = is_transposed ? Order::columns : Order::rows, .stride = stride};
}

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline std::int64_t stride_or(std::int64_t stride, std::int64_t without_gaps) {
  ensure(stride == 0 || stride >= without_gaps, "a stride is at least as long as what it skips");
  return stride == 0 ? without_gaps : stride;
}

template <class T>
void grow(Buffer<T>& buffer, std::int64_t count) {
  buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(count)));
}

// The epilogue of sums without gaps, but for where they and the results lie. A bias is widened into
// `floats`, which must stay.
inline EpilogueStep step_of(const Epilogue& epilogue, std::int64_t columns, Buffer<float>& floats) {
  EpilogueStep step{.columns = columns,
                    .stride_sums = columns,
                    .alpha = epilogue.alpha,
                    .beta = epilogue.beta,
                    .activation = epilogue.activation};
  if (epilogue.bias.data == nullptr) return step;
  grow(floats, columns);
  widen({.from = epilogue.bias.data,
         .type = epilogue.bias.type,
         .count = columns,
         .to = floats.data()});
  step.bias = floats.data();
  return step;
}

inline const void* advance(const void* data, DType type, std::int64_t count) {
  return static_cast<const std::byte*>(data) + count * bytes_of(type);
}

inline void* advance(void* data, DType type, std::int64_t count) {
  return static_cast<std::byte*>(data) + count * bytes_of(type);
}

inline Result advance(Result result, std::int64_t rows) {
  if (result.data == nullptr) return result;
  result.data = advance(result.data, result.type, rows * result.stride);
  return result;
}

// A matrix to be copied to where it lies by rows, without gaps unless there is a stride.
struct Copy {
  const void* from = nullptr;
  DType type = DType::f32;
  Layout layout;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride_to = 0;

  // From the beginning of one row of the copy to that of the next, in elements.
  [[nodiscard]] std::int64_t line() const { return stride_to == 0 ? columns : stride_to; }
};

template <class T>
void copy_transposed(const Copy& copy, T* to) {
  const auto* const from = static_cast<const T*>(copy.from);
  for (std::int64_t i = 0; i < copy.rows; ++i, to += copy.line()) {
    for (std::int64_t k = 0; k < copy.columns; ++k) to[k] = from[k * copy.layout.stride + i];
  }
}

inline void copy_as_it_is(const Copy& copy, std::byte* to) {
  if (copy.layout.order == Order::columns) {
    if (bytes_of(copy.type) == 2) return copy_transposed(copy, reinterpret_cast<Bf16*>(to));
    return copy_transposed(copy, reinterpret_cast<float*>(to));
  }
  const std::size_t bytes = static_cast<std::size_t>(copy.columns) * bytes_of(copy.type);
  const std::int64_t line = copy.line() * bytes_of(copy.type);
  for (std::int64_t i = 0; i < copy.rows; ++i, to += line) {
    std::memcpy(to, advance(copy.from, copy.type, i * copy.layout.stride), bytes);
  }
}

inline void widen_lines(const Copy& copy, float* to) {
  for (std::int64_t i = 0; i < copy.rows; ++i, to += copy.line()) {
    widen({.from = advance(copy.from, copy.type, i * copy.layout.stride),
           .type = copy.type,
           .count = copy.columns,
           .to = to});
  }
}

// These numbers as floats: where they are, or else copied to `floats`.
inline const float* widened(const void* from, DType type, std::int64_t count,
                            Buffer<float>& floats) {
  if (type == DType::f32) return static_cast<const float*>(from);
  grow(floats, count);
  widen({.from = from, .type = type, .count = count, .to = floats.data()});
  return floats.data();
}

}  // namespace shiplap::kernels
