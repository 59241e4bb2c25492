#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/tile_gemm_internal.h"

namespace shiplap::run {
namespace {

constexpr std::int64_t kTypicalGroupRows = 64;

using overlap::is_high_precision;

bool has_fp8_operand(const overlap::Problem& problem) {
  return !is_high_precision(problem.x) || !is_high_precision(problem.w);
}

}  // namespace

void check_gemm_supported(const overlap::Problem& problem) {
  const DType type = gemm_dtype(problem.type);
  const bool is_mixed =
      has_fp8_operand(problem) && (is_high_precision(problem.x) || is_high_precision(problem.w));
  if (is_mixed && type != DType::bf16) {
    throw InputError(Diagnostic{
        .code = "D802",
        .what = fmt::format("mixed GEMM of FP8 and {} is unsupported", name(problem.type)),
        .help = "pass both operands as FP8, or the other one as bf16"});
  }
  if (!is_high_precision(problem.sums) && type == DType::f16) {
    throw InputError(Diagnostic{.code = "D802",
                                .what = "FP8 partial sums with f16 results are unsupported",
                                .help = "use bf16 or f32"});
  }
}

kernels::MatrixView rows_of(const overlap::QuantFormat& format, DType type, std::byte* data,
                            const kernels::MatrixShape& shape, std::int64_t row_bytes) {
  kernels::MatrixView rows{
      .data = data, .type = type, .rows = shape.rows, .columns = shape.columns};
  if (!is_high_precision(format)) {
    rows.type = format.type;
    rows.scaling = format.scaling == overlap::Scaling::row ? kernels::ScaleGranularity::per_row
                                                           : kernels::ScaleGranularity::per_block;
    rows.scales = data + shape.columns;
    rows.scale_stride = row_bytes;
  }
  rows.stride = row_bytes / bytes_of(rows.type);
  return rows;
}

void quantize_rows(const kernels::ConstMatrixView& from, const overlap::QuantFormat& format,
                   std::byte* to, std::int64_t row_bytes, ScaleScope scale) {
  ensure(!is_high_precision(format), "only a quantized format has scales");
  const kernels::MatrixView rows =
      rows_of(format, format.type, to, {from.rows, from.columns}, row_bytes);
  if (format.scaling == overlap::Scaling::blocks) return kernels::quantize_blocks(from, rows);
  if (scale == ScaleScope::per_row) return kernels::quantize_by_row(from, rows);
  kernels::quantize(from, kernels::current_scale(kernels::compute_amax(from), rows.type), rows);
}

void dequantize_rows(std::byte* from, const overlap::QuantFormat& format, std::int64_t row_bytes,
                     const kernels::MatrixView& to) {
  kernels::dequantize(rows_of(format, format.type, from, {to.rows, to.columns}, row_bytes), to);
}

TileGemm::TileGemm(const overlap::Problem& problem, std::int64_t n, std::int64_t k,
                   std::int64_t typical_rows)
    : problem_(problem),
      n_(n),
      k_(k),
      linear_({.groups = problem.groups,
               .n = n,
               .k = k,
               .type = has_fp8_operand(problem) ? DType::bf16 : gemm_dtype(problem.type),
               .typical_rows = problem.groups == 0 ? typical_rows : kTypicalGroupRows}) {}

void TileGemm::prepare(std::span<std::byte> rows) {
  const std::int64_t width = overlap::row_bytes(problem_.w, problem_.type, k_);
  std::vector<kernels::MatrixView> weights;
  for (int group = 0; group < std::max(1, problem_.groups); ++group) {
    std::byte* const data = rows.data() + group * n_ * width;
    weights.push_back(transposed(rows_of(problem_.w, problem_.type, data, {n_, k_}, width)));
  }
  prepare(weights);
}

void TileGemm::prepare(std::span<const kernels::MatrixView> weights) {
  ensure(std::ssize(weights) == std::max(1, problem_.groups), "one weight matrix per group");
  for (std::size_t group = 0; group < weights.size(); ++group) {
    ensure(is_fp8(weights[group].type) != is_high_precision(problem_.w),
           "weights have the format of the plan");
    linear_.prepare(weights[group], static_cast<std::int64_t>(group));
  }
}

kernels::MatrixView TileGemm::rows_of_x(std::byte* data, std::int64_t rows,
                                        std::int64_t row_bytes) const {
  return rows_of(problem_.x, problem_.type, data, {rows, k_}, row_bytes);
}

std::span<const kernels::GroupRows> TileGemm::runs_in(const kernels::MatrixView& x) {
  runs_.clear();
  const std::int64_t row_bytes = x.stride * bytes_of(x.type);
  const auto* end = static_cast<const std::byte*>(x.data);
  for (std::int64_t k = 0; k < x.rows; ++k) {
    end += row_bytes;
    std::int32_t group = 0;
    std::memcpy(&group, end - overlap::kGroupBytes, sizeof group);
    if (group < 0 || group >= problem_.groups) {
      throw InputError(Diagnostic{
          .code = "D814",
          .what =
              fmt::format("group {} is out of range: there are {} groups", group, problem_.groups),
          .help = fmt::format("use 0 to {}, the same on all ranks", problem_.groups - 1)});
    }
    if (runs_.empty() || runs_.back().group != group) runs_.push_back({.group = group});
    ++runs_.back().rows;
  }
  return runs_;
}

void TileGemm::multiply(const kernels::MatrixView& x, const kernels::MatrixView& c,
                        const kernels::Epilogue& epilogue,
                        std::optional<std::span<const kernels::GroupRows>> runs) {
  if (problem_.groups == 0) return linear_.multiply(x, c, epilogue);
  linear_.multiply(x, c, epilogue, runs ? *runs : runs_in(x));
}

}  // namespace shiplap::run
