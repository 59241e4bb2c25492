#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/tile_product_internal.h"

namespace shiplap::run {
namespace {

constexpr std::int64_t kRowsOfGroup = 64;

using overlap::is_plain;

bool has_codes(const overlap::Problem& problem) {
  return !is_plain(problem.x) || !is_plain(problem.w);
}

}  // namespace

void demand_kernels(const overlap::Problem& problem) {
  const DType type = gemm_dtype(problem.type);
  const bool is_mixed = has_codes(problem) && (is_plain(problem.x) || is_plain(problem.w));
  if (is_mixed && type != DType::bf16) {
    throw InputError(
        Diagnostic{.code = "D802",
                   .what = fmt::format("products of FP8 and {} are not built", name(problem.type)),
                   .help = "give both factors as FP8, or the other one as bf16"});
  }
  if (!is_plain(problem.sums) && type == DType::f16) {
    throw InputError(Diagnostic{.code = "D802",
                                .what = "sums that travel as FP8 and become f16 are not built",
                                .help = "use bf16 or f32"});
  }
}

kernels::MatrixView rows_of(const overlap::Form& form, DType type, std::byte* data,
                            const kernels::MatrixShape& shape, std::int64_t row_bytes) {
  kernels::MatrixView rows{
      .data = data, .type = type, .rows = shape.rows, .columns = shape.columns};
  if (!is_plain(form)) {
    rows.type = form.type;
    rows.scaling =
        form.scaling == overlap::Scaling::row ? kernels::Scales::rows : kernels::Scales::blocks;
    rows.scales = data + shape.columns;
    rows.scale_stride = row_bytes;
  }
  rows.stride = row_bytes / bytes_of(rows.type);
  return rows;
}

void encode(const kernels::ConstMatrixView& from, const overlap::Form& form, std::byte* to,
            std::int64_t row_bytes, ScaleOf scale) {
  ensure(!is_plain(form), "numbers without a scale are not encoded");
  const kernels::MatrixView rows =
      rows_of(form, form.type, to, {from.rows, from.columns}, row_bytes);
  if (form.scaling == overlap::Scaling::blocks) return kernels::quantize_blocks(from, rows);
  if (scale == ScaleOf::each_row) return kernels::quantize_by_row(from, rows);
  kernels::quantize(from, kernels::current_scale(kernels::largest_absolute(from), rows.type), rows);
}

void decode(std::byte* from, const overlap::Form& form, std::int64_t row_bytes,
            const kernels::MatrixView& to) {
  kernels::dequantize(rows_of(form, form.type, from, {to.rows, to.columns}, row_bytes), to);
}

TileProduct::TileProduct(const overlap::Problem& problem, std::int64_t columns, std::int64_t depth,
                         std::int64_t typical_rows)
    : problem_(problem),
      columns_(columns),
      depth_(depth),
      linear_({.groups = problem.groups,
               .columns = columns,
               .depth = depth,
               .type = has_codes(problem) ? DType::bf16 : gemm_dtype(problem.type),
               .typical_rows = problem.groups == 0 ? typical_rows : kRowsOfGroup}) {}

void TileProduct::prepare(std::span<std::byte> rows) {
  const std::int64_t width = overlap::row_bytes(problem_.w, problem_.type, depth_);
  std::vector<kernels::MatrixView> weights;
  for (int group = 0; group < std::max(1, problem_.groups); ++group) {
    std::byte* const data = rows.data() + group * columns_ * width;
    weights.push_back(
        transposed(rows_of(problem_.w, problem_.type, data, {columns_, depth_}, width)));
  }
  prepare(weights);
}

void TileProduct::prepare(std::span<const kernels::MatrixView> weights) {
  ensure(std::ssize(weights) == std::max(1, problem_.groups), "weights of every group");
  for (std::size_t group = 0; group < weights.size(); ++group) {
    ensure(is_fp8(weights[group].type) != is_plain(problem_.w), "weights of the form of the plan");
    linear_.prepare(weights[group], static_cast<std::int64_t>(group));
  }
}

kernels::MatrixView TileProduct::rows_of_x(std::byte* data, std::int64_t rows,
                                           std::int64_t row_bytes) const {
  return rows_of(problem_.x, problem_.type, data, {rows, depth_}, row_bytes);
}

std::span<const kernels::GroupRows> TileProduct::runs_in(const kernels::MatrixView& x) {
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
          .what = fmt::format("a row of group {}, of {} groups", group, problem_.groups),
          .help = fmt::format("choose 0 to {}, the same way on all ranks", problem_.groups - 1)});
    }
    if (runs_.empty() || runs_.back().group != group) runs_.push_back({.group = group});
    ++runs_.back().rows;
  }
  return runs_;
}

void TileProduct::multiply(const kernels::MatrixView& x, const kernels::MatrixView& c,
                           const kernels::Epilogue& epilogue,
                           std::optional<std::span<const kernels::GroupRows>> runs) {
  if (problem_.groups == 0) return linear_.multiply(x, c, epilogue);
  linear_.multiply(x, c, epilogue, runs ? *runs : runs_in(x));
}

}  // namespace shiplap::run
