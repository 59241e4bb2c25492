// Copies and f32 conversions of GEMM operands.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <class T>
void copy_transposed(const ConstMatrixView& from, T* to, std::int64_t stride_to) {
  const auto* const numbers = static_cast<const T*>(from.data);
  for (std::int64_t i = 0; i < from.rows; ++i, to += stride_to) {
    for (std::int64_t k = 0; k < from.columns; ++k) to[k] = numbers[k * from.stride + i];
  }
}

// Copies to row-major, with `stride_to` elements between rows.
inline void copy_rows(const ConstMatrixView& from, std::byte* to, std::int64_t stride_to) {
  if (from.is_transposed) {
    if (bytes_of(from.type) == 2) {
      return copy_transposed(from, reinterpret_cast<Bf16*>(to), stride_to);
    }
    return copy_transposed(from, reinterpret_cast<float*>(to), stride_to);
  }
  const std::size_t bytes = static_cast<std::size_t>(from.columns) * bytes_of(from.type);
  const std::int64_t line = stride_to * bytes_of(from.type);
  for (std::int64_t i = 0; i < from.rows; ++i, to += line) std::memcpy(to, from.at(i), bytes);
}

// Copies to contiguous row-major f32.
inline void copy_as_floats(const ConstMatrixView& from, float* to) {
  if (!from.is_transposed) {
    for (std::int64_t i = 0; i < from.rows; ++i, to += from.columns) {
      convert_to_f32({.from = from.at(i), .type = from.type, .count = from.columns, .to = to});
    }
    return;
  }
  float some[64];
  for (std::int64_t k = 0; k < from.columns; ++k) {
    for (std::int64_t i = 0; i < from.rows; i += std::ssize(some)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(some), from.rows - i);
      convert_to_f32({.from = from.at(i, k), .type = from.type, .count = count, .to = some});
      for (std::int64_t j = 0; j < count; ++j) to[(i + j) * from.columns + k] = some[j];
    }
  }
}

// Returns a row as f32: in place, or converted into `floats`. Null if the matrix is null.
inline const float* row_as_floats(const ConstMatrixView& matrix, std::int64_t row,
                                  Buffer<float>& floats) {
  if (matrix.data == nullptr) return nullptr;
  if (matrix.type == DType::f32) return static_cast<const float*>(matrix.at(row));
  grow(floats, matrix.columns);
  convert_to_f32(
      {.from = matrix.at(row), .type = matrix.type, .count = matrix.columns, .to = floats.data()});
  return floats.data();
}

}  // namespace shiplap::kernels
