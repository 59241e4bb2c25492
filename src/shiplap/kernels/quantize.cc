#include "shiplap/kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {
namespace {

void check_shapes(const ConstMatrixView& from, const MatrixView& to, Scales kind) {
  ensure(to.scaling == kind, "the scales are of the kind that is written");
  ensure(from.rows == to.rows && from.columns == to.columns, "both sides have the same shape");
}

// Of numbers in one row, or in all if they have no gaps.
float amax_of(const ConstMatrixView& rows, std::int64_t first, std::int64_t count) {
  return best_quantize_loops().largest_absolute(
      {.from = rows.at(first), .type = rows.type, .count = count});
}

std::byte* codes_of(const MatrixView& matrix, std::int64_t row) {
  return static_cast<std::byte*>(matrix.data) + row * matrix.stride;
}

struct ScaledRow {
  std::int64_t row = 0;
  std::int64_t count = 0;  // of numbers: some rows may be taken as one
  float scale = 1;
};

void quantize_row(const ConstMatrixView& from, const ScaledRow& which, const MatrixView& to) {
  best_quantize_loops().round_to_codes({.from = from.at(which.row),
                                        .type = from.type,
                                        .count = which.count,
                                        .scale = which.scale,
                                        .format = to.type,
                                        .to = codes_of(to, which.row)});
}

void put_inverse(float scale, const MatrixView& to, std::int64_t row) {
  const float inverse = 1 / scale;
  std::memcpy(to.scales + row * to.scale_stride, &inverse, sizeof inverse);
}

WidenCodesStep step_of(const ConstMatrixView& from, std::int64_t row) {
  WidenCodesStep step{.from = static_cast<const std::byte*>(from.data) + row * from.stride,
                      .format = from.type,
                      .count = from.columns};
  const std::byte* const scales = from.scales + row * from.scale_stride;
  if (from.scaling == Scales::blocks) {
    step.scales = scales;
  } else {
    std::memcpy(&step.factor, scales, sizeof step.factor);
  }
  return step;
}

}  // namespace

float largest_absolute(const ConstMatrixView& rows) {
  const ConstMatrixView all = rows.with_strides();
  if (all.stride == all.columns) return amax_of(all, 0, all.rows * all.columns);
  float largest = 0;
  for (std::int64_t row = 0; row < all.rows; ++row) {
    largest = std::max(largest, amax_of(all, row, all.columns));
  }
  return largest;
}

void quantize(const ConstMatrixView& from, float scale, const MatrixView& to) {
  check_shapes(from, to, Scales::rows);
  ensure(std::isnormal(scale), "a scale is a normal number");
  const ConstMatrixView wide = from.with_strides();
  const MatrixView codes = to.with_strides();
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

void quantize_by_row(const ConstMatrixView& from, const MatrixView& to) {
  check_shapes(from, to, Scales::rows);
  ensure(to.scale_stride != 0 || to.rows <= 1, "each row has a slot for its scale");
  const ConstMatrixView wide = from.with_strides();
  const MatrixView codes = to.with_strides();
  for (std::int64_t row = 0; row < wide.rows; ++row) {
    const float amax = amax_of(wide, row, wide.columns);
    const float scale = current_scale(amax, to.type);
    quantize_row(wide, {.row = row, .count = wide.columns, .scale = scale}, codes);
    put_inverse(std::isfinite(amax) ? scale : std::numeric_limits<float>::quiet_NaN(), codes, row);
  }
}

void quantize_blocks(const ConstMatrixView& from, const MatrixView& to, MxRule rule) {
  check_shapes(from, to, Scales::blocks);
  const ConstMatrixView wide = from.with_strides();
  const MatrixView codes = to.with_strides();
  for (std::int64_t row = 0; row < wide.rows; ++row) {
    best_quantize_loops().round_to_blocks({.from = wide.at(row),
                                           .type = wide.type,
                                           .count = wide.columns,
                                           .rule = rule,
                                           .format = codes.type,
                                           .to = codes_of(codes, row),
                                           .scales = codes.scales + row * codes.scale_stride});
  }
}

void dequantize(const ConstMatrixView& from, const MatrixView& to) {
  ensure(to.type == DType::f32 || to.type == DType::bf16, "codes become f32 or bf16");
  const ConstMatrixView codes = from.with_strides();
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

void dequantize_add(const ConstMatrixView& from, const MatrixView& to) {
  ensure(to.type == DType::f32, "codes are added to f32");
  const ConstMatrixView codes = from.with_strides();
  const std::int64_t stride = stride_or(to.stride, codes.columns);
  for (std::int64_t row = 0; row < codes.rows; ++row) {
    best_quantize_loops().add_codes(step_of(codes, row),
                                    static_cast<float*>(to.data) + row * stride);
  }
}

}  // namespace shiplap::kernels
