// A non-owning matrix view, the argument of all kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "shiplap/base/dtype.h"
#include "shiplap/base/error.h"

namespace shiplap::kernels {

struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  [[nodiscard]] std::int64_t count() const { return rows * columns; }
  friend bool operator==(const MatrixShape&, const MatrixShape&) = default;
};

// MXFP8: values that share a scale.
inline constexpr std::int64_t kMxBlock = 32;

// The scales of FP8 values. per_row: one f32 inverse scale per row. per_block: MXFP8, one E8m0 per
// 32 values of a row; the last block may be shorter.
enum class ScaleGranularity : std::uint8_t { per_row, per_block };

// Returns the bytes of the scales of a row: 4, or 1 per 32 columns.
[[nodiscard]] constexpr std::int64_t scale_bytes(ScaleGranularity kind, std::int64_t columns) {
  if (kind == ScaleGranularity::per_row) return sizeof(float);
  return (columns + kMxBlock - 1) / kMxBlock;
}

// Returns `stride`, or that of a contiguous matrix if it is 0.
[[nodiscard]] inline std::int64_t stride_or(std::int64_t stride, std::int64_t contiguous) {
  ensure(stride == 0 || stride >= contiguous, "a stride is not smaller than a row");
  return stride == 0 ? contiguous : stride;
}

// rows x columns. Row i begins at data + i * stride; if transposed, column i does. Strides are in
// elements (of scales: in bytes); 0 means contiguous. A view of some columns has the stride of the
// whole matrix.
template <class Void>
struct BasicMatrixView {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

  Void* data = nullptr;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  bool is_transposed = false;
  // FP8 only. Scales may be separate, or in the same rows, after the values.
  ScaleGranularity scaling = ScaleGranularity::per_row;
  Byte* scales = nullptr;  // need not be aligned
  // Bytes between the scales of rows. 0: one scale for all rows (per_row), or contiguous
  // (per_block).
  std::int64_t scale_stride = 0;

  // Elements that are contiguous in memory.
  [[nodiscard]] std::int64_t contiguous_size() const { return is_transposed ? rows : columns; }
  // Elements between rows, and between columns.
  [[nodiscard]] std::int64_t row_stride() const { return is_transposed ? 1 : stride; }
  [[nodiscard]] std::int64_t column_stride() const { return is_transposed ? stride : 1; }
  [[nodiscard]] Void* at(std::int64_t row, std::int64_t column = 0) const {
    return static_cast<Byte*>(data) +
           (row * row_stride() + column * column_stride()) * bytes_of(type);
  }

  // Returns the view with strides set. scale_stride stays 0 for one scale of all rows.
  [[nodiscard]] BasicMatrixView with_strides() const {
    ensure(rows >= 0 && columns >= 0, "no size is negative");
    BasicMatrixView view = *this;
    view.stride = stride_or(stride, contiguous_size());
    if (scaling == ScaleGranularity::per_block || scale_stride != 0) {
      view.scale_stride = stride_or(scale_stride, scale_bytes(scaling, contiguous_size()));
    }
    return view;
  }

  // Returns `count` rows from `first` on. REQUIRES: scales, if any, belong to rows.
  [[nodiscard]] BasicMatrixView slice_rows(std::int64_t first, std::int64_t count) const {
    ensure(first >= 0 && count >= 0 && first + count <= rows, "the rows are in range");
    BasicMatrixView some = with_strides();
    some.rows = count;
    if (data != nullptr) some.data = some.at(first);
    if (scales != nullptr) some.scales += first * some.scale_stride;
    return some;
  }

  // NOLINTNEXTLINE(google-explicit-constructor): mutable to const
  [[nodiscard]] operator BasicMatrixView<const void>() const
    requires(!std::is_const_v<Void>)
  {
    return {data, type, rows, columns, stride, is_transposed, scaling, scales, scale_stride};
  }
};

using MatrixView = BasicMatrixView<void>;
using ConstMatrixView = BasicMatrixView<const void>;

template <class Void>
[[nodiscard]] BasicMatrixView<Void> transposed(BasicMatrixView<Void> matrix) {
  std::swap(matrix.rows, matrix.columns);
  matrix.is_transposed = !matrix.is_transposed;
  return matrix;
}

}  // namespace shiplap::kernels
