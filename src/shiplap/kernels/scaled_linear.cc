#include "shiplap/kernels/scaled_linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/finish.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/scaled_parts_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {
namespace {

// So many rows with several parts are multiplied together.
constexpr std::int64_t kRowsInParts = 16;
constexpr std::int64_t kPartCount = std::size(kParts);

LinearShape linear_shape(const ScaledShape& shape, std::int64_t columns) {
  return {.columns = columns,
          .depth = shape.depth,
          .type = DType::bf16,
          .typical_rows = shape.typical_rows,
          .engine = shape.engine};
}

float float_at(const std::byte* at) {
  float value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// With a stride that is not 0.
MxRow mx_row(const Fp8Rows& all, std::int64_t row) {
  return {.codes = all.codes + row * all.stride,
          .scales = all.scales + row * all.scale_stride,
          .count = all.columns,
          .format = all.format};
}

float only_scale(const Fp8Rows& factor) {
  if (factor.rows == 0) return 1;
  const float scale = float_at(factor.scales);
  for (std::int64_t row = 1; row < factor.rows && factor.scale_stride != 0; ++row) {
    ensure(float_at(factor.scales + row * factor.scale_stride) == scale,
           "weights have one scale, or one for each block");
  }
  return scale;
}

// Bytes that lie by rows, into columns.
struct Bytes2d {
  const std::byte* from = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;
};

void transpose(const Bytes2d& bytes, std::byte* to) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t i = 0; i < bytes.rows; i += kTile) {
    const std::int64_t end = std::min(i + kTile, bytes.rows);
    for (std::int64_t j = 0; j < bytes.columns; ++j) {
      for (std::int64_t k = i; k < end; ++k) {
        to[j * bytes.rows + k] = bytes.from[k * bytes.stride + j];
      }
    }
  }
}

// MXFP8 weights that lie by rows, transposed, so that blocks lie in rows.
struct TransposedWeights {
  explicit TransposedWeights(const Fp8Rows& given)
      : blocks((given.rows + kMxBlock - 1) / kMxBlock),
        codes(static_cast<std::size_t>(given.rows * given.columns)),
        scales(static_cast<std::size_t>(blocks * given.columns)) {
    transpose({given.codes, given.rows, given.columns, given.stride}, codes.data());
    transpose({given.scales, blocks, given.columns, given.scale_stride}, scales.data());
    factor = given;
    factor.codes = codes.data();
    factor.scales = scales.data();
    factor.rows = given.columns;
    factor.columns = factor.stride = given.rows;
    factor.scale_stride = blocks;
  }

  std::int64_t blocks;
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  Fp8Rows factor;
};

// Whether it is a factor like others.
bool is_usual(double factor) { return factor == 0 || std::isnormal(static_cast<float>(factor)); }

}  // namespace

// Columns of weights that have other parts than the usual one have these in a kernel of their own:
// first all the small parts, then all the large ones.
struct ScaledLinear::State {
  ScaledShape shape;
  LinearKernel usual;
  std::optional<LinearKernel> others;
  std::vector<std::int64_t> columns_in_parts;
  float weights_scale = 1;
  bool is_prepared = false;
  Buffer<Bf16> wide;  // weights on their way into a kernel
  Buffer<Bf16> rows;
  Buffer<float> sums;
  Buffer<float> other_sums;
  Buffer<double> exact;  // one row
  Buffer<float> bias;
  std::vector<std::int64_t> rows_in_parts;

  explicit State(const ScaledShape& given)
      : shape(given), usual(linear_shape(given, given.columns)) {}

  [[nodiscard]] auto others_count() const {
    return static_cast<std::int64_t>(columns_in_parts.size());
  }

  void forget() {
    others.reset();
    columns_in_parts.clear();
    weights_scale = 1;
    is_prepared = true;
  }

  // Blocks lie in rows of the factor.
  void prepare(const Fp8Rows& factor, bool is_transposed) {
    if (factor.kind == Scales::rows) weights_scale = only_scale(factor);
    grow(wide, factor.rows * factor.columns);
    for (std::int64_t j = 0; j < factor.rows; ++j) {
      Bf16* const to = wide.data() + j * factor.columns;
      if (factor.kind == Scales::blocks && has_other_parts(mx_row(factor, j))) {
        columns_in_parts.push_back(j);
        widen_part(mx_row(factor, j), Part::usual, to);
      } else {
        widen_row(factor, j, to);
      }
    }
    usual.prepare({.data = wide.data(), .is_transposed = is_transposed});
    if (!columns_in_parts.empty()) prepare_others(factor);
  }

  void prepare_others(const Fp8Rows& factor) {
    grow(wide, 2 * others_count() * shape.depth);
    Bf16* to = wide.data();
    for (const Part part : {Part::small, Part::large}) {
      for (const std::int64_t j : columns_in_parts) {
        widen_part(mx_row(factor, j), part, to);
        to += shape.depth;
      }
    }
    others.emplace(linear_shape(shape, 2 * others_count()));
    others->prepare({.data = wide.data(), .is_transposed = true});
  }

  // Without the scale of the row, but with those of blocks.
  static void widen_row(const Fp8Rows& from, std::int64_t row, Bf16* to) {
    const MxRow codes = mx_row(from, row);
    best_quantize_loops().widen_to_bf16(
        {.from = codes.codes,
         .format = codes.format,
         .count = codes.count,
         .scales = from.kind == Scales::blocks ? codes.scales : nullptr},
        to);
  }

  void reserve(std::int64_t count) {
    constexpr std::int64_t kParted = kPartCount * kRowsInParts;
    const std::int64_t most = std::min(count, shape.typical_rows);
    grow(rows, std::max(most, kParted) * shape.depth);
    grow(sums, (most + kParted) * shape.columns);
    grow(other_sums, std::max(most, kParted) * 2 * others_count());
    grow(exact, shape.columns);
    rows_in_parts.reserve(most);
  }

  void multiply(const Fp8Rows& a, const Result& c, const Epilogue& epilogue) {
    reserve(a.rows);
    for (std::int64_t first = 0; first < a.rows; first += shape.typical_rows) {
      const Fp8Rows some = some_rows(a, first, std::min(shape.typical_rows, a.rows - first));
      for (std::int64_t i = 0; i < some.rows; ++i) {
        widen_row(some, i, rows.data() + i * shape.depth);
      }
      sum_up({.data = rows.data(), .count = some.rows}, sums.data());
      if (some.kind == Scales::blocks) sum_up_rows_in_parts(some);
      finish_rows(some, first, c, epilogue);
    }
  }

  void multiply(const Rows& a, const Result& c, const Epilogue& epilogue) {
    reserve(a.count);
    Rows some = a;
    for (std::int64_t first = 0; first < a.count; first += shape.typical_rows) {
      some.count = std::min(shape.typical_rows, a.count - first);
      some.data = static_cast<Bf16*>(a.data) + first * (a.is_transposed ? 1 : a.stride);
      sum_up(some, sums.data());
      const Fp8Rows unscaled{.rows = some.count, .kind = Scales::blocks};
      finish_rows(unscaled, first, c, epilogue);
    }
  }

  // Rows of sums of usual numbers; columns in parts are put together.
  void sum_up(const Rows& a, float* to) {
    usual.multiply(a, {.data = to});
    if (!others) return;
    others->multiply(a, {.data = other_sums.data()});
    for (std::int64_t i = 0; i < a.count; ++i) {
      const float* const small = other_sums.data() + i * 2 * others_count();
      const float* const large = small + others_count();
      for (std::int64_t k = 0; k < others_count(); ++k) {
        float& sum = to[i * shape.columns + columns_in_parts[k]];
        sum = static_cast<float>(double{sum} + double{small[k]} * power_of(Part::small) +
                                 double{large[k]} * power_of(Part::large));
      }
    }
  }

  void sum_up_rows_in_parts(const Fp8Rows& a) {
    rows_in_parts.clear();
    for (std::int64_t i = 0; i < a.rows; ++i) {
      if (has_other_parts(mx_row(a, i))) rows_in_parts.push_back(i);
    }
    const std::span<const std::int64_t> all = rows_in_parts;
    for (std::size_t first = 0; first < all.size(); first += kRowsInParts) {
      sum_up_parts(a, all.subspan(first, std::min<std::size_t>(kRowsInParts, all.size() - first)));
    }
  }

  // The parts of a row follow each other. Their sums lie behind those of all rows.
  void sum_up_parts(const Fp8Rows& a, std::span<const std::int64_t> which) {
    Bf16* to = rows.data();
    for (const std::int64_t row : which) {
      for (const Part part : kParts) {
        widen_part(mx_row(a, row), part, to);
        to += shape.depth;
      }
    }
    float* from = sums.data() + a.rows * shape.columns;
    sum_up({.data = rows.data(), .count = kPartCount * std::ssize(which)}, from);
    for (const std::int64_t row : which) {
      std::fill_n(exact.begin(), shape.columns, 0.0);
      for (const Part part : kParts) {
        for (std::int64_t j = 0; j < shape.columns; ++j) {
          exact[j] += double{*from++} * power_of(part);
        }
      }
      for (std::int64_t j = 0; j < shape.columns; ++j) {
        sums[row * shape.columns + j] = static_cast<float>(exact[j]);
      }
    }
  }

  // What a row's sums are multiplied by. If that is no usual float together with alpha, the sums
  // are multiplied here.
  float alpha_of(const Fp8Rows& a, std::int64_t row, float alpha) {
    const float scale = a.kind == Scales::rows ? float_at(a.scales + row * a.scale_stride) : 1.0F;
    const double both = double{scale} * double{weights_scale};
    if (is_usual(both * double{alpha})) return static_cast<float>(both * double{alpha});
    float* const begin = sums.data() + row * shape.columns;
    std::transform(begin, begin + shape.columns, begin,
                   [both](float sum) { return static_cast<float>(double{sum} * both); });
    return alpha;
  }

  // Rows of the same alpha together.
  void finish_rows(const Fp8Rows& a, std::int64_t first, const Result& c,
                   const Epilogue& epilogue) {
    EpilogueStep step = step_of(epilogue, shape.columns, bias);
    std::int64_t begin = 0;
    step.alpha = alpha_of(a, 0, epilogue.alpha);
    for (std::int64_t end = 1; end <= a.rows; ++end) {
      const float next = end < a.rows ? alpha_of(a, end, epilogue.alpha) : 0;
      if (end < a.rows && next == step.alpha) continue;
      step.rows = end - begin;
      step.sums = sums.data() + begin * shape.columns;
      step.c = from_row(c, first + begin, shape.columns);
      step.before_activation = from_row(epilogue.before_activation, first + begin, shape.columns);
      apply_epilogue(step);
      begin = end;
      step.alpha = next;
    }
  }
};

ScaledLinear::ScaledLinear(const ScaledShape& shape) : state_(std::make_unique<State>(shape)) {}
ScaledLinear::ScaledLinear(ScaledLinear&&) noexcept = default;
ScaledLinear& ScaledLinear::operator=(ScaledLinear&&) noexcept = default;
ScaledLinear::~ScaledLinear() = default;

void ScaledLinear::prepare(const ScaledWeights& weights) {
  const ScaledShape& shape = state_->shape;
  const auto [lines, length] = weights.is_transposed ? std::pair(shape.columns, shape.depth)
                                                     : std::pair(shape.depth, shape.columns);
  ensure(weights.factor.rows == lines && weights.factor.columns == length,
         "the weights have the shape of the product");
  Fp8Rows factor = weights.factor;
  if (factor.stride == 0) factor.stride = length;
  ensure(factor.stride >= length, "a stride is at least as long as what it skips");
  const bool has_blocks = factor.kind == Scales::blocks;
  if (has_blocks && factor.scale_stride == 0) {
    factor.scale_stride = weights.is_transposed ? scale_bytes(Scales::blocks, length) : length;
  }
  state_->forget();
  if (weights.is_transposed || !has_blocks) return state_->prepare(factor, weights.is_transposed);
  state_->prepare(TransposedWeights(factor).factor, true);
}

void ScaledLinear::prepare(const Weights& weights) {
  state_->forget();
  state_->usual.prepare(weights);
}

void ScaledLinear::multiply(const Fp8Rows& a, const Result& c, const Epilogue& epilogue) {
  ensure(state_->is_prepared, "weights are prepared before they are multiplied by");
  ensure(a.columns == state_->shape.depth, "rows are as long as the weights are deep");
  if (a.rows == 0 || state_->shape.columns == 0) return;
  state_->multiply(some_rows(a, 0, a.rows), c, epilogue);
}

void ScaledLinear::multiply(const Rows& a, const Result& c, const Epilogue& epilogue) {
  ensure(state_->is_prepared, "weights are prepared before they are multiplied by");
  ensure(a.count >= 0, "no number of rows is negative");
  if (a.count == 0 || state_->shape.columns == 0) return;
  Rows rows = a;
  if (rows.stride == 0) rows.stride = a.is_transposed ? a.count : state_->shape.depth;
  state_->multiply(rows, c, epilogue);
}

std::string_view ScaledLinear::by() const { return state_->usual.by(); }

}  // namespace shiplap::kernels
