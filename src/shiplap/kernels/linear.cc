// LinearKernel: splits a call into blocks of rows, chooses an engine, and handles FP8.
//
// Three paths for a block of rows:
//   - direct: the engine writes the result itself, if there is no epilogue and the result is f32;
//   - sums: the engine writes f32 sums into a buffer that stays in the cache, and a vectorized loop
//     applies the epilogue and rounds once;
//   - AMX tiles, for grouped bf16: no compilation per shape, the epilogue runs on each tile.
// Blocks of a call must not change bits: a row goes through the same engine, layout and epilogue in
// a chunk as in the whole (see linear.h).
//
// oneDNN compiles a kernel per number of rows, about a millisecond each. Ragged groups would
// trigger this all the time, so their rows are padded with zeros to few different numbers.
//
// FP8 operands are converted to bf16 and multiplied by a bf16 engine. An MXFP8 block whose scale is
// out of the range of bf16 (scale_range_internal.h) is split off: a row with such blocks is
// multiplied once per range, with zeros elsewhere, and the sums of the ranges are added in double.
// Columns of the weights with such blocks have their other ranges in a second, small kernel.
#include "shiplap/kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "shiplap/kernels/engines_internal.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/scale_range_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

// Rows with out-of-range blocks are multiplied in batches of this size.
constexpr std::int64_t kOutOfRangeBatch = 16;
constexpr std::int64_t kRangeCount = std::size(kScaleRanges);

constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return divide_up(count, step) * step;
}

// Returns the view with sizes and strides set. REQUIRES: sizes that are set match.
template <class Void>
BasicMatrixView<Void> fitted(BasicMatrixView<Void> matrix, std::int64_t rows,
                             std::int64_t columns) {
  ensure((matrix.rows == 0 || matrix.rows == rows) &&
             (matrix.columns == 0 || matrix.columns == columns),
         "the matrix has the sizes of the GEMM");
  matrix.rows = rows;
  matrix.columns = columns;
  return matrix.with_strides();
}

// Returns whether the epilogue only stores or accumulates f32 sums.
bool is_plain_gemm(const EpilogueStep& step) {
  return step.c.type == DType::f32 && step.alpha == 1 && (step.beta == 0 || step.beta == 1) &&
         step.bias == nullptr && step.activation == Activation::none &&
         step.pre_activation.data == nullptr;
}

float scale_of(const ConstMatrixView& quantized, std::int64_t row) {
  float value = 0;
  std::memcpy(&value, quantized.scales + row * quantized.scale_stride, sizeof value);
  return value;
}

float only_scale(const ConstMatrixView& quantized) {
  if (quantized.rows == 0) return 1;
  const float scale = scale_of(quantized, 0);
  for (std::int64_t row = 1; row < quantized.rows && quantized.scale_stride != 0; ++row) {
    ensure(scale_of(quantized, row) == scale, "weights have one scale, or one for each block");
  }
  return scale;
}

MxRow mx_row(const ConstMatrixView& quantized, std::int64_t row) {
  return {.quantized = static_cast<const std::byte*>(quantized.data) + row * quantized.stride,
          .scales = quantized.scales + row * quantized.scale_stride,
          .count = quantized.columns,
          .format = quantized.type};
}

// Dequantizes a row to bf16 with the scales of its blocks, but without the scale of the row.
void dequantize_row(const ConstMatrixView& quantized, std::int64_t row, Bf16* to) {
  const MxRow from = mx_row(quantized, row);
  best_quantize_loops().dequantize_to_bf16(
      {.from = from.quantized,
       .format = from.format,
       .count = from.count,
       .scales = quantized.scaling == ScaleGranularity::per_block ? from.scales : nullptr},
      to);
}

// Transposes a row-major byte matrix.
std::vector<std::byte> transposed_bytes(const std::byte* from, const MatrixShape& shape,
                                        std::int64_t stride) {
  constexpr std::int64_t kTile = 64;
  std::vector<std::byte> to(static_cast<std::size_t>(shape.count()));
  for (std::int64_t i = 0; i < shape.rows; i += kTile) {
    const std::int64_t end = std::min(i + kTile, shape.rows);
    for (std::int64_t j = 0; j < shape.columns; ++j) {
      for (std::int64_t k = i; k < end; ++k) to[j * shape.rows + k] = from[k * stride + j];
    }
  }
  return to;
}

// Returns whether a factor is 0 or a normal f32.
bool is_normal_or_zero(double factor) {
  return factor == 0 || std::isnormal(static_cast<float>(factor));
}

// Of one group.
struct PreparedWeights {
  bool is_prepared = false;
  MatrixView given;  // the caller's, for Packing::every_call
  // FP8: the scale of all weights, and the columns with out-of-range blocks. A kernel has their
  // other ranges: first all tiny ones, then all huge ones.
  bool is_scaled = false;
  float scale = 1;
  std::vector<std::int64_t> out_of_range_columns;
  std::optional<LinearKernel> out_of_range_kernel;

  [[nodiscard]] std::int64_t out_of_range_count() const { return std::ssize(out_of_range_columns); }
};

}  // namespace

struct LinearKernel::State {
  LinearShape shape;
  std::unique_ptr<TilesEngine> tiles;    // either this,
  std::unique_ptr<LinearEngine> engine;  // or this; neither if n or k is 0
  std::int64_t block_rows = 0;
  std::vector<PreparedWeights> groups;  // one if there are no groups
  Buffer<float> weights_as_floats;      // if the engine supports only f32
  Buffer<float> bias;
  Buffer<float> sums;
  Buffer<std::byte> gathered;
  // For FP8.
  Buffer<Bf16> dequantized;  // weights, before packing
  Buffer<Bf16> dequantized_rows;
  Buffer<float> out_of_range_sums;
  Buffer<float> range_sums;
  Buffer<double> double_sums;  // one row
  std::vector<std::int64_t> out_of_range_rows;

  explicit State(const LinearShape& given) : shape(given) {
    ensure(shape.groups >= 0 && shape.n >= 0 && shape.k >= 0, "no size is negative");
    ensure(shape.typical_rows > 0, "the typical number of rows is at least 1");
    groups.resize(std::max<std::int64_t>(1, shape.groups));
    block_rows = is_grouped() ? round_up(shape.typical_rows, 16) : shape.typical_rows;
    if (shape.n == 0 || shape.k == 0) return;
    if (is_grouped() && shape.engine == Engine::best) tiles = make_tiles_engine(shape);
    if (tiles != nullptr) {
      block_rows = tiles->max_rows();
    } else {
      LinearShape one = shape;
      one.typical_rows = block_rows;
      if (is_grouped()) one.packing = Packing::once;
      engine = make_linear_engine(one);
      if (!is_grouped()) return;
      grow(sums, block_rows * shape.n);
      grow(gathered, block_rows * shape.k * bytes_of(engine->type()));
    }
  }

  [[nodiscard]] bool is_grouped() const { return shape.groups > 0; }
  [[nodiscard]] bool takes_type() const { return engine->type() == shape.type; }
  // Tiles have 16 rows. Vector kernels take any number, but each must be compiled.
  [[nodiscard]] std::int64_t row_step() const {
    if (!is_grouped()) return 1;
    return shape.type == DType::bf16 ? 16 : 4;
  }
  // With Packing::every_call, all groups use the first slot, which stays in the cache.
  [[nodiscard]] std::int64_t slot_of(std::int64_t group) const {
    return shape.packing == Packing::once ? group : 0;
  }

  // ---- weights

  void prepare(MatrixView weights, std::int64_t group) {
    ensure(group >= 0 && group < std::ssize(groups), "weights belong to one of the groups");
    const bool is_quantized = is_fp8(weights.type);
    ensure(weights.type == shape.type || (is_quantized && shape.type == DType::bf16),
           "weights have the dtype of the kernel, or FP8 if that is bf16");
    if (is_quantized && !weights.is_transposed && weights.scaling == ScaleGranularity::per_block) {
      weights.scale_stride = stride_or(weights.scale_stride, shape.n);
    }
    weights = fitted(weights, shape.k, shape.n);
    groups[group] = {.is_prepared = true, .given = weights};
    if (is_quantized) return prepare_fp8(weights, group);
    if (shape.packing == Packing::once) pack(weights, group);
  }

  void pack(MatrixView weights, std::int64_t group) {
    if (tiles != nullptr) return tiles->prepare(weights, group);
    if (engine == nullptr) return;
    if (takes_type()) return engine->prepare(weights, group);
    grow(weights_as_floats, weights.rows * weights.columns);
    copy_as_floats(weights.is_transposed ? transposed(weights) : weights, weights_as_floats.data());
    weights.data = weights_as_floats.data();
    weights.type = DType::f32;
    weights.stride = weights.contiguous_size();
    engine->prepare(weights, group);
    if (shape.packing == Packing::once && !is_grouped()) weights_as_floats = {};
  }

  void prepare_fp8(const ConstMatrixView& weights, std::int64_t group) {
    ensure(shape.packing == Packing::once, "FP8 weights are packed once");
    if (weights.is_transposed) return dequantize_weights(transposed(weights), group, true);
    if (weights.scaling == ScaleGranularity::per_row)
      return dequantize_weights(weights, group, false);
    // Transposed, so that blocks are along rows.
    const MatrixShape blocks{divide_up(weights.rows, kMxBlock), weights.columns};
    const std::vector<std::byte> quantized =
        transposed_bytes(static_cast<const std::byte*>(weights.data),
                         {weights.rows, weights.columns}, weights.stride);
    const std::vector<std::byte> scales =
        transposed_bytes(weights.scales, blocks, weights.scale_stride);
    dequantize_weights({.data = quantized.data(),
                        .type = weights.type,
                        .rows = weights.columns,
                        .columns = weights.rows,
                        .stride = weights.rows,
                        .scaling = ScaleGranularity::per_block,
                        .scales = scales.data(),
                        .scale_stride = blocks.rows},
                       group, true);
  }

  // REQUIRES: blocks are along rows.
  void dequantize_weights(const ConstMatrixView& quantized, std::int64_t group,
                          bool is_transposed) {
    PreparedWeights& weights = groups[group];
    weights.is_scaled = true;
    if (quantized.scaling == ScaleGranularity::per_row) weights.scale = only_scale(quantized);
    grow(dequantized, quantized.rows * quantized.columns);
    for (std::int64_t j = 0; j < quantized.rows; ++j) {
      Bf16* const to = dequantized.data() + j * quantized.columns;
      if (quantized.scaling == ScaleGranularity::per_block &&
          has_out_of_range_blocks(mx_row(quantized, j))) {
        weights.out_of_range_columns.push_back(j);
        dequantize_range(mx_row(quantized, j), ScaleRange::normal, to);
      } else {
        dequantize_row(quantized, j, to);
      }
    }
    const MatrixView normal{.data = dequantized.data(),
                            .type = DType::bf16,
                            .rows = quantized.rows,
                            .columns = quantized.columns,
                            .stride = quantized.columns};
    pack(is_transposed ? transposed(normal) : normal, group);
    if (weights.out_of_range_count() > 0) prepare_out_of_range(quantized, weights);
  }

  void prepare_out_of_range(const ConstMatrixView& quantized, PreparedWeights& weights) {
    grow(dequantized, 2 * weights.out_of_range_count() * shape.k);
    Bf16* to = dequantized.data();
    for (const ScaleRange part : {ScaleRange::tiny, ScaleRange::huge}) {
      for (const std::int64_t j : weights.out_of_range_columns) {
        dequantize_range(mx_row(quantized, j), part, to);
        to += shape.k;
      }
    }
    LinearShape other = shape;
    other.groups = 0;
    other.n = 2 * weights.out_of_range_count();
    weights.out_of_range_kernel.emplace(other);
    weights.out_of_range_kernel->prepare(
        {.data = dequantized.data(), .type = DType::bf16, .is_transposed = true});
  }

  // ---- GEMMs

  void check_runs(std::int64_t rows, std::span<const GroupRows> runs) const {
    for (const GroupRows& run : runs) {
      ensure(run.group >= 0 && run.group < std::ssize(groups),
             "a run belongs to one of the groups");
      ensure(run.rows >= 0, "no number of rows is negative");
      ensure(run.rows == 0 || groups[run.group].is_prepared, "weights are prepared before use");
      rows -= run.rows;
    }
    ensure(rows == 0, "the runs cover all rows");
  }

  void multiply(const MatrixView& a, const MatrixView& c, const Epilogue& epilogue,
                std::span<const GroupRows> runs) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const GroupRows& run = runs[i];
      if (run.rows == 0) continue;
      std::size_t next = i + 1;
      while (next < runs.size() && runs[next].rows == 0) ++next;
      EpilogueStep step{.columns = shape.n,
                        .stride_sums = shape.n,
                        .bias = row_as_floats(epilogue.bias, is_grouped() ? run.group : 0, bias),
                        .alpha = epilogue.alpha,
                        .beta = epilogue.beta,
                        .activation = epilogue.activation,
                        .pre_activation = epilogue.pre_activation,
                        .c = c};
      multiply_run(a.slice_rows(first, run.rows), first,
                   {.group = run.group,
                    .next = next < runs.size() ? runs[next].group : -1,
                    .given = groups[run.group].given,
                    .is_long = run.rows > block_rows},
                   step);
      first += run.rows;
    }
  }

  // Multiplies one run; its results are the rows from `first` on.
  void multiply_run(const MatrixView& a, std::int64_t first, TilesWeights weights,
                    const EpilogueStep& whole) {
    if (shape.packing == Packing::every_call && tiles == nullptr) pack(weights.given, 0);
    const bool is_fp8_gemm = is_fp8(a.type) || groups[weights.group].is_scaled;
    const std::int64_t next = weights.next;
    const bool is_direct = !is_grouped() && !is_fp8_gemm && can_write_directly(a, whole);
    const std::int64_t max_rows = is_direct ? a.rows : block_rows;
    for (std::int64_t done = 0; done < a.rows; done += max_rows) {
      const MatrixView rows = a.slice_rows(done, std::min(max_rows, a.rows - done));
      EpilogueStep step = whole;
      step.rows = rows.rows;
      step.c = whole.c.slice_rows(first + done, rows.rows);
      step.pre_activation = whole.pre_activation.slice_rows(first + done, rows.rows);
      weights.next = done + rows.rows < a.rows ? weights.group : next;
      weights.is_first = done == 0;
      if (is_fp8_gemm) {
        multiply_fp8(rows, weights, step);
      } else if (tiles != nullptr) {
        tiles->multiply(rows, weights, step);
      } else if (can_write_directly(rows, step)) {
        engine->multiply(gemm_desc(rows, step),
                         {.a = rows.data, .c = static_cast<float*>(step.c.data)},
                         slot_of(weights.group));
      } else {
        compute_sums(rows, weights, sums);
        step.sums = sums.data();
        apply_epilogue(step);
      }
    }
  }

  // The GEMM that writes directly to its destination.
  [[nodiscard]] GemmDesc gemm_desc(const ConstMatrixView& a, const EpilogueStep& step) const {
    return {.m = a.rows,
            .n = shape.n,
            .k = shape.k,
            .type = engine->type(),
            .a = layout_of(a),
            .stride_c = step.c.stride,
            .write_mode = step.beta == 0 ? WriteMode::overwrite : WriteMode::accumulate};
  }

  // Returns whether the engine can write the result itself. For groups, only with kernels that
  // other blocks use too.
  [[nodiscard]] bool can_write_directly(const ConstMatrixView& a, const EpilogueStep& step) const {
    if (engine == nullptr || !takes_type() || !is_plain_gemm(step)) return false;
    if (is_grouped() && (!is_common(a) || step.beta != 0 || step.c.stride != shape.n)) {
      return false;
    }
    return engine->supports(gemm_desc(a, step));
  }

  [[nodiscard]] bool is_common(const ConstMatrixView& a) const {
    return !is_grouped() || (a.rows % row_step() == 0 && !a.is_transposed);
  }

  // to = a times the weights, contiguous. Rows are read in place if the engine supports it.
  void compute_sums(const MatrixView& a, const TilesWeights& weights, Buffer<float>& to) {
    grow(to, a.rows * shape.n);
    if (tiles != nullptr) {
      const MatrixView c{.data = to.data(), .rows = a.rows, .columns = shape.n, .stride = shape.n};
      return tiles->multiply(a, weights, {.rows = a.rows, .columns = shape.n, .c = c});
    }
    if (engine == nullptr) {
      std::ranges::fill(to, 0.0F);
      return;
    }
    GemmDesc desc = gemm_desc(a, {.c = {.stride = shape.n}});
    void* rows = a.data;
    if (!takes_type() || !is_common(a) || !engine->supports(desc)) {
      gather(a);
      pad(desc);
      rows = gathered.data();
    }
    grow(to, desc.m * shape.n);
    engine->multiply(desc, {.a = rows, .c = to.data()}, slot_of(weights.group));
  }

  void gather(const ConstMatrixView& a) {
    grow(gathered, a.rows * a.columns * bytes_of(engine->type()));
    if (takes_type()) return copy_rows(a, gathered.data(), a.columns);
    copy_as_floats(a, reinterpret_cast<float*>(gathered.data()));
  }

  // Turns a GEMM of gathered rows into one that the engine supports, padded with rows of zeros if
  // needed.
  void pad(GemmDesc& desc) {
    const std::int64_t count = desc.m;
    desc.a = {.stride = shape.k};
    desc.m = round_up(count, row_step());
    while (!engine->supports(desc) && desc.m < block_rows) {
      desc.m = std::min(2 * desc.m, block_rows);
    }
    const auto bytes = shape.k * bytes_of(engine->type());
    grow(gathered, desc.m * bytes);
    std::fill_n(gathered.begin() + count * bytes, (desc.m - count) * bytes, std::byte{});
  }

  // ---- FP8

  void multiply_fp8(const MatrixView& a, const TilesWeights& weights, EpilogueStep& step) {
    const bool is_quantized = is_fp8(a.type);
    if (is_quantized) {
      grow(dequantized_rows, a.rows * shape.k);
      for (std::int64_t i = 0; i < a.rows; ++i) {
        dequantize_row(a, i, dequantized_rows.data() + i * shape.k);
      }
    }
    compute_fp8_sums(is_quantized ? dequantized_view(a.rows) : a, weights, sums);
    if (is_quantized && a.scaling == ScaleGranularity::per_block)
      compute_out_of_range_rows(a, weights);
    apply_epilogue_rows(a, groups[weights.group].scale, step);
  }

  [[nodiscard]] MatrixView dequantized_view(std::int64_t rows) {
    return {.data = dequantized_rows.data(),
            .type = DType::bf16,
            .rows = rows,
            .columns = shape.k,
            .stride = shape.k};
  }

  // Sums of the normal range; out-of-range columns are completed.
  void compute_fp8_sums(const MatrixView& a, const TilesWeights& weights, Buffer<float>& to) {
    compute_sums(a, weights, to);
    PreparedWeights& group = groups[weights.group];
    if (!group.out_of_range_kernel) return;
    const std::int64_t count = group.out_of_range_count();
    grow(out_of_range_sums, a.rows * 2 * count);
    group.out_of_range_kernel->multiply(a, {.data = out_of_range_sums.data()});
    for (std::int64_t i = 0; i < a.rows; ++i) {
      const float* const small = out_of_range_sums.data() + i * 2 * count;
      const float* const large = small + count;
      for (std::int64_t k = 0; k < count; ++k) {
        float& sum = to[i * shape.n + group.out_of_range_columns[k]];
        sum = static_cast<float>(double{sum} + double{small[k]} * range_factor(ScaleRange::tiny) +
                                 double{large[k]} * range_factor(ScaleRange::huge));
      }
    }
  }

  void compute_out_of_range_rows(const ConstMatrixView& a, const TilesWeights& weights) {
    out_of_range_rows.clear();
    out_of_range_rows.reserve(a.rows);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      if (has_out_of_range_blocks(mx_row(a, i))) out_of_range_rows.push_back(i);
    }
    const std::span<const std::int64_t> all = out_of_range_rows;
    for (std::size_t first = 0; first < all.size(); first += kOutOfRangeBatch) {
      compute_range_sums(
          a, weights,
          all.subspan(first, std::min<std::size_t>(kOutOfRangeBatch, all.size() - first)));
    }
  }

  // The ranges of a row are consecutive rows.
  void compute_range_sums(const ConstMatrixView& a, const TilesWeights& weights,
                          std::span<const std::int64_t> which) {
    grow(dequantized_rows, kRangeCount * kOutOfRangeBatch * shape.k);
    grow(double_sums, shape.n);
    Bf16* to = dequantized_rows.data();
    for (const std::int64_t row : which) {
      for (const ScaleRange part : kScaleRanges) {
        dequantize_range(mx_row(a, row), part, to);
        to += shape.k;
      }
    }
    compute_fp8_sums(dequantized_view(kRangeCount * std::ssize(which)), weights, range_sums);
    const float* from = range_sums.data();
    for (const std::int64_t row : which) {
      std::fill_n(double_sums.begin(), shape.n, 0.0);
      for (const ScaleRange part : kScaleRanges) {
        for (std::int64_t j = 0; j < shape.n; ++j) {
          double_sums[j] += double{*from++} * range_factor(part);
        }
      }
      for (std::int64_t j = 0; j < shape.n; ++j) {
        sums[row * shape.n + j] = static_cast<float>(double_sums[j]);
      }
    }
  }

  // Returns the factor of a row's sums: alpha times both scales. If that is not a normal f32, the
  // sums are multiplied by the scales here.
  float alpha_of(double scales, std::int64_t row, float alpha) {
    if (is_normal_or_zero(scales * double{alpha}))
      return static_cast<float>(scales * double{alpha});
    float* const begin = sums.data() + row * shape.n;
    std::transform(begin, begin + shape.n, begin,
                   [scales](float sum) { return static_cast<float>(double{sum} * scales); });
    return alpha;
  }

  // Applies the epilogue to consecutive rows with the same alpha.
  void apply_epilogue_rows(const ConstMatrixView& a, float weights_scale, EpilogueStep& whole) {
    const bool has_scales = is_fp8(a.type) && a.scaling == ScaleGranularity::per_row;
    EpilogueStep step = whole;
    std::int64_t begin = 0;
    for (std::int64_t end = 0; end <= a.rows; ++end) {
      float next = 0;
      if (end < a.rows) {
        const double scale = has_scales ? double{scale_of(a, end)} : 1.0;
        next = alpha_of(scale * double{weights_scale}, end, whole.alpha);
      }
      if (end == 0) step.alpha = next;
      if (end == 0 || (end < a.rows && next == step.alpha)) continue;
      step.rows = end - begin;
      step.sums = sums.data() + begin * shape.n;
      step.c = whole.c.slice_rows(begin, step.rows);
      step.pre_activation = whole.pre_activation.slice_rows(begin, step.rows);
      apply_epilogue(step);
      begin = end;
      step.alpha = next;
    }
  }
};

LinearKernel::LinearKernel(const LinearShape& shape) : state_(std::make_unique<State>(shape)) {}
LinearKernel::LinearKernel(LinearKernel&&) noexcept = default;
LinearKernel& LinearKernel::operator=(LinearKernel&&) noexcept = default;
LinearKernel::~LinearKernel() = default;

void LinearKernel::prepare(const MatrixView& weights, std::int64_t group) {
  state_->prepare(weights, group);
}

void LinearKernel::prepare(std::span<const MatrixView> weights) {
  ensure(std::ssize(weights) == state_->shape.groups, "there are weights for each group");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    state_->prepare(weights[i], static_cast<std::int64_t>(i));
  }
}

void LinearKernel::multiply(const MatrixView& a, const MatrixView& c, const Epilogue& epilogue,
                            std::span<const GroupRows> runs) {
  const LinearShape& shape = state_->shape;
  const bool is_quantized = is_fp8(a.type) && shape.type == DType::bf16;
  ensure(a.type == shape.type || is_quantized,
         "rows have the dtype of the kernel, or FP8 if that is bf16");
  const DType bias = epilogue.bias.type;
  ensure(bias == DType::f32 || bias == shape.type || is_quantized,
         "the bias is f32 or has the dtype of the kernel");
  const MatrixView rows = fitted(a, a.rows, shape.k);
  const GroupRows all{.group = 0, .rows = a.rows};
  ensure(state_->is_grouped() || runs.empty(), "there are runs if there are groups");
  if (!state_->is_grouped()) runs = std::span(&all, 1);
  state_->check_runs(a.rows, runs);
  if (a.rows == 0 || shape.n == 0) return;
  Epilogue rest = epilogue;
  rest.bias = fitted(rest.bias, std::max<std::int64_t>(1, shape.groups), shape.n);
  rest.pre_activation = fitted(rest.pre_activation, a.rows, shape.n);
  state_->multiply(rows, fitted(c, a.rows, shape.n), rest, runs);
}

std::string_view LinearKernel::backend_name() const {
  if (state_->tiles != nullptr) return "AMX tiles";
  return state_->engine == nullptr ? "reference" : state_->engine->name();
}

bool is_identity(const Epilogue& epilogue) {
  return epilogue.alpha == 1 && epilogue.beta == 0 && epilogue.bias.data == nullptr &&
         epilogue.activation == Activation::none && epilogue.pre_activation.data == nullptr;
}

void apply_epilogue(const ConstMatrixView& sums, const MatrixView& c, const Epilogue& epilogue) {
  if (sums.rows == 0 || sums.columns == 0) return;
  Buffer<float> floats;
  Buffer<float> bias;
  const ConstMatrixView from = sums.with_strides();
  const MatrixView to = fitted(c, sums.rows, sums.columns);
  const MatrixView pre = fitted(epilogue.pre_activation, sums.rows, sums.columns);
  EpilogueStep step{.columns = sums.columns,
                    .stride_sums = sums.columns,
                    .bias = row_as_floats(fitted(epilogue.bias, 1, sums.columns), 0, bias),
                    .alpha = epilogue.alpha,
                    .beta = epilogue.beta,
                    .activation = epilogue.activation};
  // As many rows at once as stay in the cache.
  const std::int64_t max_rows = std::max<std::int64_t>(1, 4096 / sums.columns);
  grow(floats, std::min(max_rows, sums.rows) * sums.columns);
  step.sums = floats.data();
  for (std::int64_t row = 0; row < sums.rows; row += max_rows) {
    step.rows = std::min(max_rows, sums.rows - row);
    step.c = to.slice_rows(row, step.rows);
    step.pre_activation = pre.slice_rows(row, step.rows);
    copy_as_floats(from.slice_rows(row, step.rows), floats.data());
    apply_epilogue(step);
  }
}

}  // namespace shiplap::kernels
