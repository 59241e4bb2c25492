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
#include "shiplap/kernels/scaled_parts_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

// So many rows with several parts are multiplied together.
constexpr std::int64_t kRowsInParts = 16;
constexpr std::int64_t kPartCount = std::size(kParts);

constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return divide_up(count, step) * step;
}

// With the sizes that it must have, and strides.
template <class Void>
BasicMatrixView<Void> fitted(BasicMatrixView<Void> matrix, std::int64_t rows,
                             std::int64_t columns) {
  ensure((matrix.rows == 0 || matrix.rows == rows) &&
             (matrix.columns == 0 || matrix.columns == columns),
         "a matrix has the sizes of the product");
  matrix.rows = rows;
  matrix.columns = columns;
  return matrix.with_strides();
}

// Whether nothing is left to do with sums but to store them as floats, or to add them to some.
bool is_product(const EpilogueStep& step) {
  return step.c.type == DType::f32 && step.alpha == 1 && (step.beta == 0 || step.beta == 1) &&
         step.bias == nullptr && step.activation == Activation::none &&
         step.before_activation.data == nullptr;
}

float scale_of(const ConstMatrixView& codes, std::int64_t row) {
  float value = 0;
  std::memcpy(&value, codes.scales + row * codes.scale_stride, sizeof value);
  return value;
}

float only_scale(const ConstMatrixView& codes) {
  if (codes.rows == 0) return 1;
  const float scale = scale_of(codes, 0);
  for (std::int64_t row = 1; row < codes.rows && codes.scale_stride != 0; ++row) {
    ensure(scale_of(codes, row) == scale, "weights have one scale, or one for each block");
  }
  return scale;
}

MxRow mx_row(const ConstMatrixView& codes, std::int64_t row) {
  return {.codes = static_cast<const std::byte*>(codes.data) + row * codes.stride,
          .scales = codes.scales + row * codes.scale_stride,
          .count = codes.columns,
          .format = codes.type};
}

// Without the scale of the row, but with those of blocks.
void widen_codes(const ConstMatrixView& codes, std::int64_t row, Bf16* to) {
  const MxRow from = mx_row(codes, row);
  best_quantize_loops().widen_to_bf16(
      {.from = from.codes,
       .format = from.format,
       .count = from.count,
       .scales = codes.scaling == Scales::blocks ? from.scales : nullptr},
      to);
}

// Bytes that lie by rows, into columns.
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

// Whether it is a factor like others.
bool is_usual(double factor) { return factor == 0 || std::isnormal(static_cast<float>(factor)); }

// Of one group.
struct PreparedWeights {
  bool is_prepared = false;
  MatrixView given;  // for Packing::every_call
  // Of FP8: the scale of all, and columns that have other parts than the usual one. These have them
  // in a kernel of their own: first all the small parts, then all the large ones.
  bool is_scaled = false;
  float scale = 1;
  std::vector<std::int64_t> columns_in_parts;
  std::optional<LinearKernel> others;

  [[nodiscard]] std::int64_t others_count() const { return std::ssize(columns_in_parts); }
};

}  // namespace

// A call that is more than a product of floats goes a block of rows at a time, so that the sums
// stay in the cache. Groups are cut into few different numbers of rows, filled up with rows of
// zeros, because oneDNN needs about a millisecond to compile for a new one; so ragged groups need
// nothing new after the first calls.
struct LinearKernel::State {
  LinearShape shape;
  std::unique_ptr<TilesEngine> tiles;    // these,
  std::unique_ptr<LinearEngine> engine;  // or this; neither if there is nothing to multiply
  std::int64_t block_rows = 0;
  std::vector<PreparedWeights> groups;  // one if there are no groups
  Buffer<float> weights_as_floats;      // where the engine takes only these
  Buffer<float> bias;
  Buffer<float> sums;
  Buffer<std::byte> gathered;
  // For FP8.
  Buffer<Bf16> wide;  // weights on their way into a kernel
  Buffer<Bf16> wide_rows;
  Buffer<float> other_sums;
  Buffer<float> part_sums;
  Buffer<double> exact;  // one row
  std::vector<std::int64_t> rows_in_parts;

  explicit State(const LinearShape& given) : shape(given) {
    ensure(shape.groups >= 0 && shape.columns >= 0 && shape.depth >= 0, "no size is negative");
    ensure(shape.typical_rows > 0, "the typical number of rows is at least 1");
    groups.resize(std::max<std::int64_t>(1, shape.groups));
    block_rows = is_grouped() ? round_up(shape.typical_rows, 16) : shape.typical_rows;
    if (shape.columns == 0 || shape.depth == 0) return;
    if (is_grouped() && shape.engine == Engine::best) tiles = make_tiles_engine(shape);
    if (tiles != nullptr) {
      block_rows = tiles->most_rows();
    } else {
      LinearShape one = shape;
      one.typical_rows = block_rows;
      if (is_grouped()) one.packing = Packing::once;
      engine = make_linear_engine(one);
      if (!is_grouped()) return;
      grow(sums, block_rows * shape.columns);
      grow(gathered, block_rows * shape.depth * bytes_of(engine->type()));
    }
  }

  [[nodiscard]] bool is_grouped() const { return shape.groups > 0; }
  [[nodiscard]] bool takes_type() const { return engine->type() == shape.type; }
  // Tiles have 16 rows. Vectors take any number, but each has its price.
  [[nodiscard]] std::int64_t row_step() const {
    if (!is_grouped()) return 1;
    return shape.type == DType::bf16 ? 16 : 4;
  }
  // Packed by every call, all groups take the first one's place, which stays in the cache.
  [[nodiscard]] std::int64_t place_of(std::int64_t group) const {
    return shape.packing == Packing::once ? group : 0;
  }

  // ---- weights

  void prepare(MatrixView weights, std::int64_t group) {
    ensure(group >= 0 && group < std::ssize(groups), "weights belong to one of the groups");
    const bool has_codes = is_fp8(weights.type);
    ensure(weights.type == shape.type || (has_codes && shape.type == DType::bf16),
           "weights are of the type of the product, or FP8 where that is bf16");
    if (has_codes && !weights.is_transposed && weights.scaling == Scales::blocks) {
      weights.scale_stride = stride_or(weights.scale_stride, shape.columns);
    }
    weights = fitted(weights, shape.depth, shape.columns);
    groups[group] = {.is_prepared = true, .given = weights};
    if (has_codes) return prepare_codes(weights, group);
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
    weights.stride = weights.line();
    engine->prepare(weights, group);
    if (shape.packing == Packing::once && !is_grouped()) weights_as_floats = {};
  }

  void prepare_codes(const ConstMatrixView& weights, std::int64_t group) {
    ensure(shape.packing == Packing::once, "weights of FP8 are packed once");
    if (weights.is_transposed) return widen_weights(transposed(weights), group, true);
    if (weights.scaling == Scales::rows) return widen_weights(weights, group, false);
    // Transposed, so that blocks lie in rows.
    const MatrixShape blocks{divide_up(weights.rows, kMxBlock), weights.columns};
    const std::vector<std::byte> codes =
        transposed_bytes(static_cast<const std::byte*>(weights.data),
                         {weights.rows, weights.columns}, weights.stride);
    const std::vector<std::byte> scales =
        transposed_bytes(weights.scales, blocks, weights.scale_stride);
    widen_weights({.data = codes.data(),
                   .type = weights.type,
                   .rows = weights.columns,
                   .columns = weights.rows,
                   .stride = weights.rows,
                   .scaling = Scales::blocks,
                   .scales = scales.data(),
                   .scale_stride = blocks.rows},
                  group, true);
  }

  // Blocks lie in rows.
  void widen_weights(const ConstMatrixView& codes, std::int64_t group, bool is_transposed) {
    PreparedWeights& weights = groups[group];
    weights.is_scaled = true;
    if (codes.scaling == Scales::rows) weights.scale = only_scale(codes);
    grow(wide, codes.rows * codes.columns);
    for (std::int64_t j = 0; j < codes.rows; ++j) {
      Bf16* const to = wide.data() + j * codes.columns;
      if (codes.scaling == Scales::blocks && has_other_parts(mx_row(codes, j))) {
        weights.columns_in_parts.push_back(j);
        widen_part(mx_row(codes, j), Part::usual, to);
      } else {
        widen_codes(codes, j, to);
      }
    }
    const MatrixView usual{.data = wide.data(),
                           .type = DType::bf16,
                           .rows = codes.rows,
                           .columns = codes.columns,
                           .stride = codes.columns};
    pack(is_transposed ? transposed(usual) : usual, group);
    if (weights.others_count() > 0) prepare_others(codes, weights);
  }

  void prepare_others(const ConstMatrixView& codes, PreparedWeights& weights) {
    grow(wide, 2 * weights.others_count() * shape.depth);
    Bf16* to = wide.data();
    for (const Part part : {Part::small, Part::large}) {
      for (const std::int64_t j : weights.columns_in_parts) {
        widen_part(mx_row(codes, j), part, to);
        to += shape.depth;
      }
    }
    LinearShape other = shape;
    other.groups = 0;
    other.columns = 2 * weights.others_count();
    weights.others.emplace(other);
    weights.others->prepare({.data = wide.data(), .type = DType::bf16, .is_transposed = true});
  }

  // ---- products

  void check_runs(std::int64_t rows, std::span<const GroupRows> runs) const {
    for (const GroupRows& run : runs) {
      ensure(run.group >= 0 && run.group < std::ssize(groups),
             "a run belongs to one of the groups");
      ensure(run.rows >= 0, "no number of rows is negative");
      ensure(run.rows == 0 || groups[run.group].is_prepared,
             "weights are prepared before they are multiplied by");
      rows -= run.rows;
    }
    ensure(rows == 0, "the runs have as many rows as there are");
  }

  void multiply(const MatrixView& a, const MatrixView& c, const Epilogue& epilogue,
                std::span<const GroupRows> runs) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const GroupRows& run = runs[i];
      if (run.rows == 0) continue;
      std::size_t next = i + 1;
      while (next < runs.size() && runs[next].rows == 0) ++next;
      EpilogueStep step{.columns = shape.columns,
                        .stride_sums = shape.columns,
                        .bias = widened(epilogue.bias, is_grouped() ? run.group : 0, bias),
                        .alpha = epilogue.alpha,
                        .beta = epilogue.beta,
                        .activation = epilogue.activation,
                        .before_activation = epilogue.before_activation,
                        .c = c};
      multiply_run(a.some_rows(first, run.rows), first,
                   {.group = run.group,
                    .next = next < runs.size() ? runs[next].group : -1,
                    .given = groups[run.group].given,
                    .is_long = run.rows > block_rows},
                   step);
      first += run.rows;
    }
  }

  // Rows from `first` on of all.
  void multiply_run(const MatrixView& a, std::int64_t first, TilesWeights weights,
                    const EpilogueStep& whole) {
    if (shape.packing == Packing::every_call && tiles == nullptr) pack(weights.given, 0);
    const bool is_coded = is_fp8(a.type) || groups[weights.group].is_scaled;
    const std::int64_t next = weights.next;
    const bool is_direct = !is_grouped() && !is_coded && can_directly(a, whole);
    const std::int64_t most = is_direct ? a.rows : block_rows;
    for (std::int64_t done = 0; done < a.rows; done += most) {
      const MatrixView rows = a.some_rows(done, std::min(most, a.rows - done));
      EpilogueStep step = whole;
      step.rows = rows.rows;
      step.c = whole.c.some_rows(first + done, rows.rows);
      step.before_activation = whole.before_activation.some_rows(first + done, rows.rows);
      weights.next = done + rows.rows < a.rows ? weights.group : next;
      weights.is_first = done == 0;
      if (is_coded) {
        multiply_codes(rows, weights, step);
      } else if (tiles != nullptr) {
        tiles->multiply(rows, weights, step);
      } else if (can_directly(rows, step)) {
        engine->multiply(product_of(rows, step),
                         {.a = rows.data, .c = static_cast<float*>(step.c.data)},
                         place_of(weights.group));
      } else {
        sum_up(rows, weights, sums);
        step.sums = sums.data();
        apply_epilogue(step);
      }
    }
  }

  // The product that goes straight to its place.
  [[nodiscard]] Product product_of(const ConstMatrixView& a, const EpilogueStep& step) const {
    return {.rows = a.rows,
            .columns = shape.columns,
            .depth = shape.depth,
            .type = engine->type(),
            .a = layout_of(a),
            .stride_c = step.c.stride,
            .into = step.beta == 0 ? Into::overwrite : Into::accumulate};
  }

  // Whether the engine can write the result itself. For groups it makes nothing for that which
  // other blocks would not use.
  [[nodiscard]] bool can_directly(const ConstMatrixView& a, const EpilogueStep& step) const {
    if (engine == nullptr || !takes_type() || !is_product(step)) return false;
    if (is_grouped() && (!is_common(a) || step.beta != 0 || step.c.stride != shape.columns)) {
      return false;
    }
    return engine->can(product_of(a, step));
  }

  [[nodiscard]] bool is_common(const ConstMatrixView& a) const {
    return !is_grouped() || (a.rows % row_step() == 0 && !a.is_transposed);
  }

  // to = a times the weights, without gaps. Rows are read where they lie if the engine can.
  void sum_up(const MatrixView& a, const TilesWeights& weights, Buffer<float>& to) {
    grow(to, a.rows * shape.columns);
    if (tiles != nullptr) {
      const MatrixView c{
          .data = to.data(), .rows = a.rows, .columns = shape.columns, .stride = shape.columns};
      return tiles->multiply(a, weights, {.rows = a.rows, .columns = shape.columns, .c = c});
    }
    if (engine == nullptr) {
      std::ranges::fill(to, 0.0F);
      return;
    }
    Product product = product_of(a, {.c = {.stride = shape.columns}});
    void* rows = a.data;
    if (!takes_type() || !is_common(a) || !engine->can(product)) {
      gather(a);
      pad(product);
      rows = gathered.data();
    }
    grow(to, product.rows * shape.columns);
    engine->multiply(product, {.a = rows, .c = to.data()}, place_of(weights.group));
  }

  void gather(const ConstMatrixView& a) {
    grow(gathered, a.rows * a.columns * bytes_of(engine->type()));
    if (takes_type()) return copy_rows(a, gathered.data(), a.columns);
    copy_as_floats(a, reinterpret_cast<float*>(gathered.data()));
  }

  // Makes a product of gathered rows one that the engine can do, with rows of zeros if need be.
  void pad(Product& product) {
    const std::int64_t count = product.rows;
    product.a = {.stride = shape.depth};
    product.rows = round_up(count, row_step());
    while (!engine->can(product) && product.rows < block_rows) {
      product.rows = std::min(2 * product.rows, block_rows);
    }
    const auto bytes = shape.depth * bytes_of(engine->type());
    grow(gathered, product.rows * bytes);
    std::fill_n(gathered.begin() + count * bytes, (product.rows - count) * bytes, std::byte{});
  }

  // ---- FP8

  void multiply_codes(const MatrixView& a, const TilesWeights& weights, EpilogueStep& step) {
    const bool has_codes = is_fp8(a.type);
    if (has_codes) {
      grow(wide_rows, a.rows * shape.depth);
      for (std::int64_t i = 0; i < a.rows; ++i) {
        widen_codes(a, i, wide_rows.data() + i * shape.depth);
      }
    }
    sum_up_columns(has_codes ? in_wide_rows(a.rows) : a, weights, sums);
    if (has_codes && a.scaling == Scales::blocks) sum_up_rows_in_parts(a, weights);
    finish_rows(a, groups[weights.group].scale, step);
  }

  [[nodiscard]] MatrixView in_wide_rows(std::int64_t rows) {
    return {.data = wide_rows.data(),
            .type = DType::bf16,
            .rows = rows,
            .columns = shape.depth,
            .stride = shape.depth};
  }

  // Rows of sums of usual numbers; columns in parts are put together.
  void sum_up_columns(const MatrixView& a, const TilesWeights& weights, Buffer<float>& to) {
    sum_up(a, weights, to);
    PreparedWeights& group = groups[weights.group];
    if (!group.others) return;
    const std::int64_t count = group.others_count();
    grow(other_sums, a.rows * 2 * count);
    group.others->multiply(a, {.data = other_sums.data()});
    for (std::int64_t i = 0; i < a.rows; ++i) {
      const float* const small = other_sums.data() + i * 2 * count;
      const float* const large = small + count;
      for (std::int64_t k = 0; k < count; ++k) {
        float& sum = to[i * shape.columns + group.columns_in_parts[k]];
        sum = static_cast<float>(double{sum} + double{small[k]} * power_of(Part::small) +
                                 double{large[k]} * power_of(Part::large));
      }
    }
  }

  void sum_up_rows_in_parts(const ConstMatrixView& a, const TilesWeights& weights) {
    rows_in_parts.clear();
    rows_in_parts.reserve(a.rows);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      if (has_other_parts(mx_row(a, i))) rows_in_parts.push_back(i);
    }
    const std::span<const std::int64_t> all = rows_in_parts;
    for (std::size_t first = 0; first < all.size(); first += kRowsInParts) {
      sum_up_parts(a, weights,
                   all.subspan(first, std::min<std::size_t>(kRowsInParts, all.size() - first)));
    }
  }

  // The parts of a row follow each other.
  void sum_up_parts(const ConstMatrixView& a, const TilesWeights& weights,
                    std::span<const std::int64_t> which) {
    grow(wide_rows, kPartCount * kRowsInParts * shape.depth);
    grow(exact, shape.columns);
    Bf16* to = wide_rows.data();
    for (const std::int64_t row : which) {
      for (const Part part : kParts) {
        widen_part(mx_row(a, row), part, to);
        to += shape.depth;
      }
    }
    sum_up_columns(in_wide_rows(kPartCount * std::ssize(which)), weights, part_sums);
    const float* from = part_sums.data();
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

  // What a row's sums are multiplied by: alpha and both scales. If that is no usual float, the sums
  // are multiplied by the scales here.
  float alpha_of(double scales, std::int64_t row, float alpha) {
    if (is_usual(scales * double{alpha})) return static_cast<float>(scales * double{alpha});
    float* const begin = sums.data() + row * shape.columns;
    std::transform(begin, begin + shape.columns, begin,
                   [scales](float sum) { return static_cast<float>(double{sum} * scales); });
    return alpha;
  }

  // Rows of the same alpha together.
  void finish_rows(const ConstMatrixView& a, float weights_scale, EpilogueStep& whole) {
    const bool has_scales = is_fp8(a.type) && a.scaling == Scales::rows;
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
      step.sums = sums.data() + begin * shape.columns;
      step.c = whole.c.some_rows(begin, step.rows);
      step.before_activation = whole.before_activation.some_rows(begin, step.rows);
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
  const bool has_codes = is_fp8(a.type) && shape.type == DType::bf16;
  ensure(a.type == shape.type || has_codes,
         "rows are of the type of the product, or FP8 where that is bf16");
  const DType bias = epilogue.bias.type;
  ensure(bias == DType::f32 || bias == shape.type || has_codes,
         "a bias is f32 or of the type of the factors");
  const MatrixView rows = fitted(a, a.rows, shape.depth);
  const GroupRows all{.group = 0, .rows = a.rows};
  ensure(state_->is_grouped() || runs.empty(), "there are runs if there are groups");
  if (!state_->is_grouped()) runs = std::span(&all, 1);
  state_->check_runs(a.rows, runs);
  if (a.rows == 0 || shape.columns == 0) return;
  Epilogue rest = epilogue;
  rest.bias = fitted(rest.bias, std::max<std::int64_t>(1, shape.groups), shape.columns);
  rest.before_activation = fitted(rest.before_activation, a.rows, shape.columns);
  state_->multiply(rows, fitted(c, a.rows, shape.columns), rest, runs);
}

std::string_view LinearKernel::by() const {
  if (state_->tiles != nullptr) return "tiles of AMX";
  return state_->engine == nullptr ? "plain loops" : state_->engine->name();
}

bool is_identity(const Epilogue& epilogue) {
  return epilogue.alpha == 1 && epilogue.beta == 0 && epilogue.bias.data == nullptr &&
         epilogue.activation == Activation::none && epilogue.before_activation.data == nullptr;
}

void finish(const ConstMatrixView& sums, const MatrixView& c, const Epilogue& epilogue) {
  if (sums.rows == 0 || sums.columns == 0) return;
  Buffer<float> floats;
  Buffer<float> bias;
  const ConstMatrixView from = sums.with_strides();
  const MatrixView to = fitted(c, sums.rows, sums.columns);
  const MatrixView before = fitted(epilogue.before_activation, sums.rows, sums.columns);
  EpilogueStep step{.columns = sums.columns,
                    .stride_sums = sums.columns,
                    .bias = widened(fitted(epilogue.bias, 1, sums.columns), 0, bias),
                    .alpha = epilogue.alpha,
                    .beta = epilogue.beta,
                    .activation = epilogue.activation};
  // So many rows at once that they stay in the cache.
  const std::int64_t most = std::max<std::int64_t>(1, 4096 / sums.columns);
  grow(floats, std::min(most, sums.rows) * sums.columns);
  step.sums = floats.data();
  for (std::int64_t row = 0; row < sums.rows; row += most) {
    step.rows = std::min(most, sums.rows - row);
    step.c = to.some_rows(row, step.rows);
    step.before_activation = before.some_rows(row, step.rows);
    copy_as_floats(from.some_rows(row, step.rows), floats.data());
    apply_epilogue(step);
  }
}

}  // namespace shiplap::kernels
