// A matrix that lies somewhere: what all kernels take and write.
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

// MXFP8: numbers that share a scale.
inline constexpr std::int64_t kMxBlock = 32;

// What FP8 numbers are multiplied by. rows: a float for a row, the inverse of its scale. blocks:
// MXFP8, an E8m0 for every 32 numbers of a row, the last of which may be fewer.
enum class Scales : std::uint8_t { rows, blocks };

// The bytes of the scales of a row: 4, or 1 for every 32 columns.
[[nodiscard]] constexpr std::int64_t scale_bytes(Scales kind, std::int64_t columns) {
  if (kind == Scales::rows) return sizeof(float);
  return (columns + kMxBlock - 1) / kMxBlock;
}

// `stride`, or what it is if nothing lies between.
[[nodiscard]] inline std::int64_t stride_or(std::int64_t stride, std::int64_t without_gaps) {
  ensure(stride == 0 || stride >= without_gaps, "a stride is at least as long as what it skips");
  return stride == 0 ? without_gaps : stride;
}

// rows x columns. Row i begins at data + i * stride; of a transposed one, column i does. Strides
// count elements (those of scales, bytes); 0 means that there are no gaps. For some of the columns
// of a wider matrix, point to the first and give its stride.
template <class Void>
struct BasicMatrixView {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

  Void* data = nullptr;
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
  bool is_transposed = false;
  // Of FP8. Numbers and scales may lie apart, or in the same rows, one behind the other.
  Scales scaling = Scales::rows;
  Byte* scales = nullptr;  // need not be aligned
  // From the scales of a row to those of the next. 0: one for all rows (Scales::rows), or no gaps
  // (Scales::blocks).
  std::int64_t scale_stride = 0;

  // Elements that lie next to each other.
  [[nodiscard]] std::int64_t line() const { return is_transposed ? rows : columns; }
  // Elements from one row to the next, and from one column to the next.
  [[nodiscard]] std::int64_t down() const { return is_transposed ? 1 : stride; }
  [[nodiscard]] std::int64_t right() const { return is_transposed ? stride : 1; }
  [[nodiscard]] Void* at(std::int64_t row, std::int64_t column = 0) const {
    return static_cast<Byte*>(data) + (row * down() + column * right()) * bytes_of(type);
  }

  // With strides that are not 0, except for one scale of all rows, and of nothing.
  [[nodiscard]] BasicMatrixView with_strides() const {
    ensure(rows >= 0 && columns >= 0, "no size is negative");
    BasicMatrixView view = *this;
    view.stride = stride_or(stride, line());
    if (scaling == Scales::blocks || scale_stride != 0) {
      view.scale_stride = stride_or(scale_stride, scale_bytes(scaling, line()));
    }
    return view;
  }

  // The same from a row on, `count` of them. REQUIRES: scales are those of rows, if there are any.
  [[nodiscard]] BasicMatrixView some_rows(std::int64_t first, std::int64_t count) const {
    ensure(first >= 0 && count >= 0 && first + count <= rows, "rows are some of those there are");
    BasicMatrixView some = with_strides();
    some.rows = count;
    if (data != nullptr) some.data = some.at(first);
    if (scales != nullptr) some.scales += first * some.scale_stride;
    return some;
  }

  // NOLINTNEXTLINE(google-explicit-constructor): what may be written may be read
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
