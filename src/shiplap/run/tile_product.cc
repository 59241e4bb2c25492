#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/finish.h"
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

kernels::Fp8Rows rows_of(const overlap::Form& form, std::byte* data, std::int64_t rows,
                         std::int64_t columns, std::int64_t row_bytes) {
  return {.codes = data,
          .rows = rows,
          .columns = columns,
          .stride = row_bytes,
          .format = form.type,
          .kind = form.scaling == overlap::Scaling::row ? kernels::Scales::rows
                                                        : kernels::Scales::blocks,
          .scales = data + columns,
          .scale_stride = row_bytes};
}

void encode(const kernels::WideRows& from, const overlap::Form& form, std::byte* to,
            std::int64_t row_bytes, ScaleOf scale) {
  const kernels::Fp8Rows rows = rows_of(form, to, from.rows, from.columns, row_bytes);
  switch (form.scaling) {
    case overlap::Scaling::row:
      if (scale == ScaleOf::each_row) return kernels::quantize_by_row(from, rows);
      return kernels::quantize(
          from, kernels::current_scale(kernels::largest_absolute(from), rows.format), rows);
    case overlap::Scaling::blocks:
      return kernels::quantize_blocks(from, rows);
    case overlap::Scaling::none:
      break;
  }
  throw InternalError("numbers without a scale are not encoded");
}

void decode(std::byte* from, const overlap::Form& form, std::int64_t row_bytes, std::int64_t rows,
            std::int64_t columns, const kernels::Result& to) {
  kernels::dequantize(rows_of(form, from, rows, columns, row_bytes), to);
}

TileProduct::TileProduct(const overlap::Problem& problem, std::int64_t columns, std::int64_t depth,
                         std::int64_t typical_rows)
    : problem_(problem), columns_(columns), depth_(depth), type_(gemm_dtype(problem.type)) {
  if (has_codes(problem)) {
    for (int group = 0; group < std::max(1, problem.groups); ++group) {
      // Groups have few rows each, and every one its own memory for so many.
      scaled_.emplace_back(
          kernels::ScaledShape{.columns = columns,
                               .depth = depth,
                               .typical_rows = problem.groups == 0 ? typical_rows : kRowsOfGroup});
    }
  } else if (problem.groups > 0) {
    grouped_.emplace(kernels::GroupedShape{
        .groups = problem.groups, .columns = columns, .depth = depth, .type = type_});
  } else {
    linear_.emplace(kernels::LinearShape{
        .columns = columns, .depth = depth, .type = type_, .typical_rows = typical_rows});
  }
}

void TileProduct::prepare(std::span<std::byte> rows) {
  const std::int64_t width = overlap::row_bytes(problem_.w, problem_.type, depth_);
  std::vector<ProductWeights> weights;
  for (int group = 0; group < std::max(1, problem_.groups); ++group) {
    std::byte* const data = rows.data() + group * columns_ * width;
    if (is_plain(problem_.w)) {
      weights.push_back(kernels::Weights{.data = data, .is_transposed = true});
    } else {
      const kernels::Fp8Rows factor = rows_of(problem_.w, data, columns_, depth_, width);
      weights.push_back(kernels::ScaledWeights{.factor = factor});
    }
  }
  prepare(weights);
}

void TileProduct::prepare(std::span<const ProductWeights> weights) {
  ensure(std::ssize(weights) == std::max(1, problem_.groups), "weights of every group");
  for (std::size_t group = 0; group < weights.size(); ++group) {
    const auto* const plain = std::get_if<kernels::Weights>(&weights[group]);
    ensure((plain != nullptr) == is_plain(problem_.w), "weights of the form that was said");
    if (linear_) linear_->prepare(*plain);
    if (grouped_) grouped_->prepare(static_cast<std::int64_t>(group), *plain);
    if (scaled_.empty()) continue;
    std::visit([&](const auto& each) { scaled_[group].prepare(each); }, weights[group]);
  }
}

kernels::Rows TileProduct::plain_rows(const TileRows& x) const {
  const auto bytes = bytes_of(type_);
  return {.data = x.data,
          .count = x.count,
          .stride = x.is_transposed ? x.stride : x.row_bytes / bytes,
          .is_transposed = x.is_transposed};
}

std::span<const kernels::GroupRows> TileProduct::runs_of(const TileRows& x) {
  if (x.runs) return *x.runs;
  runs_.clear();
  for (std::int64_t k = 0; k < x.count; ++k) {
    std::int32_t group = 0;
    std::memcpy(&group, x.data + (k + 1) * x.row_bytes - overlap::kGroupBytes, sizeof group);
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

void TileProduct::multiply(const TileRows& x, const kernels::Result& c,
                           const kernels::Epilogue& epilogue, const kernels::GroupedBias& bias) {
  if (linear_) return linear_->multiply(plain_rows(x), c, epilogue);
  if (!grouped_) return multiply_coded(x, c, epilogue, bias);
  grouped_->multiply(plain_rows(x), runs_of(x), c,
                     {.alpha = epilogue.alpha,
                      .beta = epilogue.beta,
                      .bias = bias,
                      .activation = epilogue.activation,
                      .before_activation = epilogue.before_activation});
}

void TileProduct::multiply_coded(const TileRows& x, const kernels::Result& c,
                                 const kernels::Epilogue& epilogue,
                                 const kernels::GroupedBias& bias) {
  const std::array<kernels::GroupRows, 1> all{{{.group = 0, .rows = x.count}}};
  const std::span<const kernels::GroupRows> runs = problem_.groups == 0 ? all : runs_of(x);
  std::int64_t row = 0;
  for (const kernels::GroupRows& run : runs) {
    kernels::ScaledLinear& linear = scaled_[run.group];
    kernels::Epilogue here = epilogue;
    here.before_activation = kernels::from_row(epilogue.before_activation, row, columns_);
    if (bias.data != nullptr) {
      const std::int64_t stride = bias.stride == 0 ? columns_ : bias.stride;
      here.bias = {.data = static_cast<const std::byte*>(bias.data) +
                           run.group * stride * bytes_of(bias.type),
                   .type = bias.type};
    }
    TileRows some = x;
    some.data += row * x.row_bytes;
    some.count = run.rows;
    const kernels::Result to = kernels::from_row(c, row, columns_);
    if (is_plain(problem_.x)) {
      linear.multiply(plain_rows(some), to, here);
    } else {
      linear.multiply(rows_of(problem_.x, some.data, some.count, depth_, some.row_bytes), to, here);
    }
    row += run.rows;
  }
}

std::string_view TileProduct::by() const {
  if (linear_) return linear_->by();
  return grouped_ ? grouped_->by() : scaled_.front().by();
}

}  // namespace shiplap::run
