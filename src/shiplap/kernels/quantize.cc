#include "shiplap/kernels/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {
namespace {

void check_shapes(const ConstMatrixView& from, const MatrixView& to, ScaleGranularity kind) {
  ensure(to.scaling == kind, "the output has this granularity of scales");
  ensure(from.rows == to.rows && from.columns == to.columns, "both sides have the same shape");
}

// Of one row, or of all if they are contiguous.
float amax_of(const ConstMatrixView& rows, std::int64_t first, std::int64_t count) {
  return best_quantize_loops().compute_amax(
      {.from = rows.at(first), .type = rows.type, .count = count});
}

std::byte* quantized_row(const MatrixView& matrix, std::int64_t row) {
  return static_cast<std::byte*>(matrix.data) + row * matrix.stride;
}

struct ScaledRow {
  std::int64_t row = 0;
  std::int64_t count = 0;  // of values; contiguous rows are treated as one
  float scale = 1;
};

void quantize_row(const ConstMatrixView& from, const ScaledRow& which, const MatrixView& to) {
  best_quantize_loops().quantize({.from = from.at(which.row),
                                  .type = from.type,
                                  .count = which.count,
                                  .scale = which.scale,
                                  .format = to.type,
                                  .to = quantized_row(to, which.row)});
}

void put_inverse(float scale, const MatrixView& to, std::int64_t row) {
  const float inverse = 1 / scale;
  std::memcpy(to.scales + row * to.scale_stride, &inverse, sizeof inverse);
}

DequantizeStep step_of(const ConstMatrixView& from, std::int64_t row) {
  DequantizeStep step{.from = static_cast<const std::byte*>(from.data) + row * from.stride,
                      .format = from.type,
                      .count = from.columns};
  const std::byte* const scales = from.scales + row * from.scale_stride;
  if (from.scaling == ScaleGranularity::per_block) {
    step.scales = scales;
  } else {
    std::memcpy(&step.factor, scales, sizeof step.factor);
  }
  return step;
}

}  // namespace

float compute_amax(const ConstMatrixView& rows) {
  const ConstMatrixView all = rows.with_strides();
  if (all.stride == all.columns) return amax_of(all, 0, all.rows * all.columns);
  float largest = 0;
  for (std::int64_t row = 0; row < all.rows; ++row) {
    largest = std::max(largest, amax_of(all, row, all.columns));
  }
  return largest;
}

void quantize(const ConstMatrixView& from, float scale, const MatrixView& to) {
  check_shapes(from, to, ScaleGranularity::per_row);
  ensure(std::isnormal(scale), "a scale is a normal number");
  const ConstMatrixView values = from.with_strides();
  const MatrixView quantized = to.with_strides();
  if (values.stride == values.columns && quantized.stride == quantized.columns) {
    quantize_row(values, {.row = 0, .count = values.rows * values.columns, .scale = scale},
                 quantized);
  } else {
    for (std::int64_t row = 0; row < values.rows; ++row) {
      quantize_row(values, {.row = row, .count = values.columns, .scale = scale}, quantized);
    }
  }
  const std::int64_t slots =
      quantized.scale_stride == 0 ? std::min<std::int64_t>(quantized.rows, 1) : quantized.rows;
  for (std::int64_t row = 0; row < slots; ++row) put_inverse(scale, quantized, row);
}

void quantize_by_row(const ConstMatrixView& from, const MatrixView& to) {
  check_shapes(from, to, ScaleGranularity::per_row);
  ensure(to.scale_stride != 0 || to.rows <= 1, "each row has its own scale");
  const ConstMatrixView values = from.with_strides();
  const MatrixView quantized = to.with_strides();
  for (std::int64_t row = 0; row < values.rows; ++row) {
    const float amax = amax_of(values, row, values.columns);
    const float scale = current_scale(amax, to.type);
    quantize_row(values, {.row = row, .count = values.columns, .scale = scale}, quantized);
    put_inverse(std::isfinite(amax) ? scale : std::numeric_limits<float>::quiet_NaN(), quantized,
                row);
  }
}

void quantize_blocks(const ConstMatrixView& from, const MatrixView& to, MxRule rule) {
  check_shapes(from, to, ScaleGranularity::per_block);
  const ConstMatrixView values = from.with_strides();
  const MatrixView quantized = to.with_strides();
  for (std::int64_t row = 0; row < values.rows; ++row) {
    best_quantize_loops().quantize_blocks(
        {.from = values.at(row),
         .type = values.type,
         .count = values.columns,
         .rule = rule,
         .format = quantized.type,
         .to = quantized_row(quantized, row),
         .scales = quantized.scales + row * quantized.scale_stride});
  }
}

void dequantize(const ConstMatrixView& from, const MatrixView& to) {
  ensure(to.type == DType::f32 || to.type == DType::bf16, "FP8 is dequantized to f32 or bf16");
  const ConstMatrixView quantized = from.with_strides();
  const std::int64_t stride = stride_or(to.stride, quantized.columns);
  const QuantizeLoops& loops = best_quantize_loops();
  for (std::int64_t row = 0; row < quantized.rows; ++row) {
    const DequantizeStep step = step_of(quantized, row);
    if (to.type == DType::f32) {
      loops.dequantize_to_f32(step, static_cast<float*>(to.data) + row * stride);
    } else {
      loops.dequantize_to_bf16(step, static_cast<Bf16*>(to.data) + row * stride);
    }
  }
}

void dequantize_add(const ConstMatrixView& from, const MatrixView& to) {
  ensure(to.type == DType::f32, "FP8 is added to f32");
  const ConstMatrixView quantized = from.with_strides();
  const std::int64_t stride = stride_or(to.stride, quantized.columns);
  for (std::int64_t row = 0; row < quantized.rows; ++row) {
    best_quantize_loops().dequantize_add(step_of(quantized, row),
                                         static_cast<float*>(to.data) + row * stride);
  }
}

}  // namespace shiplap::kernels
