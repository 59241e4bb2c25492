#include "shiplap/kernels/scaling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

constexpr ScalingMode kModes[] = {ScalingMode::no_scaling, ScalingMode::delayed_tensor_scaling,
                                  ScalingMode::mxfp8_1d_scaling,
                                  ScalingMode::current_tensor_scaling};

constexpr MatrixShape kTile{.rows = 128, .columns = 4};

MatrixShape padded(const MatrixShape& plain) {
  return {.rows = divide_up(plain.rows, kTile.rows) * kTile.rows,
          .columns = divide_up(plain.columns, kTile.columns) * kTile.columns};
}

// Returns the index of a scale in swizzled order.
std::size_t swizzled_at(const MatrixShape& padded, std::int64_t row, std::int64_t column) {
  const std::int64_t tile =
      row / kTile.rows * (padded.columns / kTile.columns) + column / kTile.columns;
  const std::int64_t inside = row % 32 * 16 + row % kTile.rows / 32 * 4 + column % kTile.columns;
  return static_cast<std::size_t>(tile * kTile.count() + inside);
}

void check_sizes(const MatrixShape& matrix, std::size_t plain, std::size_t swizzled) {
  ensure(matrix.rows >= 0 && matrix.columns >= 0, "no size is negative");
  ensure(plain == static_cast<std::size_t>(matrix.count()), "plain scales fill their matrix");
  ensure(swizzled == static_cast<std::size_t>(padded(matrix).count()),
         "swizzled scales fill their tiles");
}

}  // namespace

std::string_view name(ScalingMode mode) {
  switch (mode) {
    case ScalingMode::no_scaling:
      return "no_scaling";
    case ScalingMode::delayed_tensor_scaling:
      return "delayed_tensor_scaling";
    case ScalingMode::mxfp8_1d_scaling:
      return "mxfp8_1d_scaling";
    case ScalingMode::current_tensor_scaling:
      return "current_tensor_scaling";
  }
  throw InternalError("unknown mode of scaling");
}

std::optional<ScalingMode> parse_scaling_mode(std::string_view text) {
  for (const ScalingMode mode : kModes) {
    if (name(mode) == text) return mode;
  }
  return std::nullopt;
}

ScalingMode scaling_mode_from_int(std::int64_t integer) {
  for (const ScalingMode mode : kModes) {
    if (static_cast<std::int64_t>(mode) == integer) return mode;
  }
  const bool is_nvfp4 = integer == 4 || integer == 5;
  throw InputError(Diagnostic{
      .code = "D810",
      .what = is_nvfp4
                  ? "scaling mode " + std::to_string(integer) + " is NVFP4, which is unsupported"
                  : "unknown scaling mode " + std::to_string(integer),
      .why = "0 is no_scaling, 1 delayed_tensor_scaling, 2 mxfp8_1d_scaling, 3 "
             "current_tensor_scaling",
      .help = is_nvfp4 ? "use mxfp8_1d_scaling (2), which scales blocks too"
                       : "pass one of these integers"});
}

float current_scale(float amax, DType format, int margin) {
  if (amax == 0 || !std::isfinite(amax)) return 1;
  const double exact = std::ldexp(double{fp8_max(format)} / double{std::abs(amax)}, -margin);
  return static_cast<float>(std::clamp(exact, 0x1p-126, 0x1p126));
}

AmaxHistory::AmaxHistory(const DelayedScaling& scaling) : scaling_(scaling) {
  ensure(scaling.length > 0, "a history has at least one step");
  steps_.resize(scaling.length);
}

void AmaxHistory::record(float amax) {
  if (std::isfinite(amax)) steps_[now_] = std::max(steps_[now_], std::abs(amax));
}

void AmaxHistory::update() {
  const float amax =
      scaling_.rule == AmaxRule::most_recent ? steps_[now_] : *std::ranges::max_element(steps_);
  if (amax != 0) scale_ = current_scale(amax, scaling_.format, scaling_.margin);
  now_ = (now_ + 1) % steps_.size();
  steps_[now_] = 0;
}

// Both formats have a largest number of 1.75 times a power of two, so that the sizes that need the
// next power are those with a mantissa above that. A subnormal size is below all that count.
E8m0 mx_scale(float block_amax, DType format, MxRule rule) {
  constexpr std::uint32_t kThreeQuarters = 0x600000;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(block_amax) & 0x7fffffff;
  if (bits > 0x7f800000) return {0xff};
  if (bits == 0x7f800000) return {0xfe};
  const int up = rule == MxRule::round_up && (bits & 0x7fffff) > kThreeQuarters ? 1 : 0;
  const int code = static_cast<int>(bits >> 23) - (format == DType::fp8_e4m3 ? 8 : 15) + up;
  return {static_cast<std::uint8_t>(std::max(code, 0))};
}

MatrixShape mx_scale_shape(std::int64_t rows, std::int64_t columns, ScaleOrder order) {
  ensure(rows >= 0 && columns >= 0, "no size is negative");
  const MatrixShape plain{.rows = rows, .columns = divide_up(columns, kMxBlock)};
  return order == ScaleOrder::plain ? plain : padded(plain);
}

void swizzle(const MatrixShape& matrix, std::span<const std::byte> plain,
             std::span<std::byte> swizzled) {
  check_sizes(matrix, plain.size(), swizzled.size());
  std::ranges::fill(swizzled, std::byte{});
  const MatrixShape whole = padded(matrix);
  std::size_t from = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t column = 0; column < matrix.columns; ++column) {
      swizzled[swizzled_at(whole, row, column)] = plain[from++];
    }
  }
}

void unswizzle(const MatrixShape& matrix, std::span<const std::byte> swizzled,
               std::span<std::byte> plain) {
  check_sizes(matrix, plain.size(), swizzled.size());
  const MatrixShape whole = padded(matrix);
  std::size_t to = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t column = 0; column < matrix.columns; ++column) {
      plain[to++] = swizzled[swizzled_at(whole, row, column)];
    }
  }
}

}  // namespace shiplap::kernels
