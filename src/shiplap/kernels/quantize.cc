#include "shiplap/kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

// With strides that are not 0, except for one scale of all rows.
Fp8Rows with_strides(Fp8Rows rows) {
  ensure(rows.rows >= 0 && rows.columns >= 0, "no size is negative");
  rows.stride = stride_or(rows.stride, rows.columns);
  const std::int64_t bytes = scale_bytes(rows.kind, rows.columns);
  if (rows.kind == Scales::blocks || rows.scale_stride != 0) {
    rows.scale_stride = stride_or(rows.scale_stride, bytes);
  }
  return rows;
}

// With a stride that is not 0 unless there are no columns.
WideRows with_stride(WideRows rows) {
  ensure(rows.rows >= 0 && rows.columns >= 0, "no size is negative");
  rows.stride = stride_or(rows.stride, rows.columns);
  return rows;
}

const std::byte* row_of(const WideRows& rows, std::int64_t row) {
  return static_cast<const std::byte*>(rows.data) + row * rows.stride * bytes_of(rows.type);
}

void check_shapes(const WideRows& from, const Fp8Rows& to, Scales kind) {
  ensure(to.kind == kind, "the scales are of the kind that is written");
  ensure(from.rows == to.rows && from.columns == to.columns, "both sides have the same shape");
}

float row_scale(const Fp8Rows& rows, std::int64_t row) {
  float scale = 0;
  std::memcpy(&scale, rows.scales + row * rows.scale_stride, sizeof scale);
  return scale;
}

// Of numbers in one row, or in all if they have no gaps.
float amax_of(const WideRows& rows, std::int64_t first, std::int64_t count) {
  return best_quantize_loops().largest_absolute(
      {.from = row_of(rows, first), .type = rows.type, .count = count});
}

struct ScaledRow {
  std::int64_t row = 0;
  std::int64_t count = 0;  // of numbers: some rows may be taken as one
  float scale = 1;
};

void quantize_row(const WideRows& from, const ScaledRow& which, const Fp8Rows& to) {
  best_quantize_loops().round_to_codes({.from = row_of(from, which.row),
                                        .type = from.type,
                                        .count = which.count,
                                        .scale = which.scale,
                                        .format = to.format,
                                        .to = to.codes + which.row * to.stride});
}

void put_inverse(float scale, const Fp8Rows& to, std::int64_t row) {
  const float inverse = 1 / scale;
  std::memcpy(to.scales + row * to.scale_stride, &inverse, sizeof inverse);
}

WidenCodesStep step_of(const Fp8Rows& from, std::int64_t row) {
  const bool has_blocks = from.kind == Scales::blocks;
  return {.from = from.codes + row * from.stride,
          .format = from.format,
          .count = from.columns,
          .factor = has_blocks ? 1 : row_scale(from, row),
          .scales = has_blocks ? from.scales + row * from.scale_stride : nullptr};
}

}  // namespace

std::int64_t scale_bytes(Scales kind, std::int64_t columns) {
  if (kind == Scales::rows) return sizeof(float);
  return (columns + kMxBlock - 1) / kMxBlock;
}

Fp8Rows some_rows(const Fp8Rows& all, std::int64_t first, std::int64_t count) {
  ensure(first >= 0 && count >= 0 && first + count <= all.rows, "rows are some of those there are");
  Fp8Rows some = with_strides(all);
  some.codes += first * some.stride;
  some.scales += first * some.scale_stride;
  some.rows = count;
  return some;
}

float largest_absolute(const WideRows& rows) {
  const WideRows all = with_stride(rows);
  if (all.stride == all.columns) return amax_of(all, 0, all.rows * all.columns);
  float largest = 0;
  for (std::int64_t row = 0; row < all.rows; ++row) {
    largest = std::max(largest, amax_of(all, row, all.columns));
  }
  return largest;
}

void quantize(const WideRows& from, float scale, const Fp8Rows& to) {
  check_shapes(from, to, Scales::rows);
  ensure(std::isnormal(scale), "a scale is a normal number");
  const WideRows wide = with_stride(from);
  const Fp8Rows codes = with_strides(to);
  if (wide.stride == wide.columns && codes.stride == codes.columns) {
    quantize_row(wide, {.row = 0, .count = wide.rows * wide.columns, .scale = scale}, codes);
  } else {
    for (std::int64_t row = 0; row < wide.rows; ++row) {
      quantize_row(wide, {.row = row, .count = wide.columns, .scale = scale}, codes);
    }
  }
  const std::int64_t slots =
      codes.scale_stride == 0 ? std::min<std::int64_t>(codes.rows, 1) : codes.rows;
  for (std::int64_t row = 0; row < slots; ++row) put_inverse(scale, codes, row);
}

void quantize_by_row(const WideRows& from, const Fp8Rows& to) {
  check_shapes(from, to, Scales::rows);
  ensure(to.scale_stride != 0 || to.rows <= 1, "each row has a slot for its scale");
  const WideRows wide = with_stride(from);
  const Fp8Rows codes = with_strides(to);
  for (std::int64_t row = 0; row < wide.rows; ++row) {
    const float amax = amax_of(wide, row, wide.columns);
    const float scale = current_scale(amax, to.format);
    quantize_row(wide, {.row = row, .count = wide.columns, .scale = scale}, codes);
    put_inverse(std::isfinite(amax) ? scale : std::numeric_limits<float>::quiet_NaN(), codes, row);
  }
}

void quantize_blocks(const WideRows& from, const Fp8Rows& to, MxRule rule) {
  check_shapes(from, to, Scales::blocks);
  const WideRows wide = with_stride(from);
  const Fp8Rows codes = with_strides(to);
  for (std::int64_t row = 0; row < wide.rows; ++row) {
    best_quantize_loops().round_to_blocks({.from = row_of(wide, row),
                                           .type = wide.type,
                                           .count = wide.columns,
                                           .rule = rule,
                                           .format = codes.format,
                                           .to = codes.codes + row * codes.stride,
                                           .scales = codes.scales + row * codes.scale_stride});
  }
}

void dequantize(const Fp8Rows& from, const Result& to) {
  ensure(to.type == DType::f32 || to.type == DType::bf16, "codes become f32 or bf16");
  const Fp8Rows codes = with_strides(from);
  const std::int64_t stride = stride_or(to.stride, codes.columns);
  const QuantizeLoops& loops = best_quantize_loops();
  for (std::int64_t row = 0; row < codes.rows; ++row) {
    const WidenCodesStep step = step_of(codes, row);
    if (to.type == DType::f32) {
      loops.widen_to_floats(step, static_cast<float*>(to.data) + row * stride);
    } else {
      loops.widen_to_bf16(step, static_cast<Bf16*>(to.data) + row * stride);
    }
  }
}

void dequantize_add(const Fp8Rows& from, float* to, std::int64_t stride) {
  const Fp8Rows codes = with_strides(from);
  const std::int64_t step = stride_or(stride, codes.columns);
  for (std::int64_t row = 0; row < codes.rows; ++row) {
    best_quantize_loops().add_codes(step_of(codes, row), to + row * step);
  }
}

}  // namespace shiplap::kernels
