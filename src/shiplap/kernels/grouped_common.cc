// Grouped products by oneDNN or plain loops: one engine that keeps the weights of all groups.
//
// Rows of zeros fill blocks up to few different numbers of rows, because oneDNN needs about a
// millisecond to compile for a new one. So ragged groups need nothing new after the first calls.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/grouped_internal.h"
#include "shiplap/kernels/linear_internal.h"
#include "shiplap/kernels/rows_internal.h"

namespace shiplap::kernels {
namespace {

// Tiles have 16 rows. Vectors take any number, but each has its price.
constexpr std::int64_t row_step(DType type) { return type == DType::bf16 ? 16 : 4; }

constexpr std::int64_t round_up(std::int64_t count, std::int64_t step) {
  return (count + step - 1) / step * step;
}

// Whether the result is the product itself, in float and without gaps.
bool is_product(const EpilogueStep& step) {
  return step.c.type == DType::f32 && step.c.stride == step.columns && step.alpha == 1 &&
         step.beta == 0 && step.bias == nullptr && step.activation == Activation::none &&
         step.before_activation.data == nullptr;
}

class CommonEngine final : public GroupedEngine {
 public:
  explicit CommonEngine(const GroupedShape& shape)
      : shape_(shape),
        block_rows_(round_up(shape.typical_rows, 16)),
        given_(static_cast<std::size_t>(shape.groups)) {
    sums_.resize(block_rows_ * shape.columns);
    if (shape.columns == 0 || shape.depth == 0) return;
    engine_ = make_linear_engine({.columns = shape.columns,
                                  .depth = shape.depth,
                                  .type = shape.type,
                                  .typical_rows = block_rows_,
                                  .engine = shape.engine});
    gathered_.resize(static_cast<std::size_t>(block_rows_ * shape.depth) *
                     bytes_of(engine_->type()));
  }

  [[nodiscard]] std::string_view name() const override {
    return engine_ == nullptr ? "plain loops" : engine_->name();
  }

  void prepare(std::int64_t group, const Weights& weights) override {
    given_[group] = weights;
    if (shape_.packing == Packing::once) pack(group, weights);
  }

  void multiply(const GroupedCall& call) override {
    std::int64_t first = 0;
    for (const GroupRows& run : call.runs) {
      if (run.rows > 0) multiply_run(call, run, first);
      first += run.rows;
    }
  }

 private:
  // Some rows of `a`, all of one group.
  struct Block {
    const Rows& a;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::int64_t group = 0;  // of the engine
  };

  [[nodiscard]] bool takes_type() const { return engine_->type() == shape_.type; }

  void pack(std::int64_t group, const Weights& weights) {
    if (engine_ == nullptr) return;
    const Layout layout = layout_of(weights.is_transposed, weights.stride);
    if (takes_type()) {
      return engine_->prepare({.data = weights.data, .layout = layout, .group = group});
    }
    const std::int64_t lines = weights.is_transposed ? shape_.columns : shape_.depth;
    const std::int64_t length = weights.is_transposed ? shape_.depth : shape_.columns;
    grow(weights_as_floats_, lines * length);
    widen_lines({.from = weights.data,
                 .type = shape_.type,
                 .layout = layout,
                 .rows = lines,
                 .columns = length},
                weights_as_floats_.data());
    engine_->prepare({.data = weights_as_floats_.data(),
                      .layout = {.order = layout.order, .stride = length},
                      .group = group});
  }

  // The group of the engine that has the weights. Packed by every call, all take the first one's
  // place, which stays in the cache.
  std::int64_t packed_group(std::int64_t group) {
    if (shape_.packing == Packing::once) return group;
    pack(0, given_[group]);
    return 0;
  }

  void multiply_run(const GroupedCall& call, const GroupRows& run, std::int64_t first) {
    EpilogueStep step{.columns = shape_.columns,
                      .stride_sums = shape_.columns,
                      .bias = bias_of(call.epilogue.bias, run.group),
                      .alpha = call.epilogue.alpha,
                      .beta = call.epilogue.beta,
                      .activation = call.epilogue.activation};
    const std::int64_t group = packed_group(run.group);
    for (std::int64_t done = 0; done < run.rows; done += block_rows_) {
      step.rows = std::min(block_rows_, run.rows - done);
      step.c = advance(call.c, first + done);
      step.before_activation = advance(call.epilogue.before_activation, first + done);
      multiply_block({call.a, first + done, step.rows, group}, step);
    }
  }

  void multiply_block(const Block& block, EpilogueStep& step) {
    if (engine_ == nullptr) {
      std::ranges::fill(sums_, 0.0F);
    } else {
      RowsProduct product{.rows = block.count,
                          .a = layout_of(block.a.is_transposed, block.a.stride),
                          .stride_c = shape_.columns};
      void* const rows = find_rows(block, product);
      if (product.rows == block.count && is_product(step)) {
        auto* const c = static_cast<float*>(step.c.data);
        return engine_->multiply(product, {.a = rows, .c = c, .group = block.group});
      }
      engine_->multiply(product, {.a = rows, .c = sums_.data(), .group = block.group});
    }
    step.sums = sums_.data();
    apply_epilogue(step);
  }

  // Rows are read where they lie if the engine can, and need not make anything for them that other
  // rows will not use.
  void* find_rows(const Block& block, RowsProduct& product) {
    const Rows& a = block.a;
    void* const rows = advance(a.data, shape_.type, block.first * (a.is_transposed ? 1 : a.stride));
    const bool is_usual = product.rows % row_step(shape_.type) == 0 && !a.is_transposed;
    if (takes_type() && is_usual && engine_->can(product)) return rows;
    gather({.from = rows,
            .type = shape_.type,
            .layout = product.a,
            .rows = block.count,
            .columns = shape_.depth});
    pad(product);
    return gathered_.data();
  }

  void gather(const Copy& copy) {
    const std::int64_t count = copy.rows * copy.columns;
    if (takes_type()) return copy_as_it_is(copy, gathered_.data());
    auto* const floats = reinterpret_cast<float*>(gathered_.data());
    if (copy.layout.order == Order::rows) return widen_lines(copy, floats);
    grow(straightened_, block_rows_ * copy.columns * bytes_of(copy.type));
    copy_as_it_is(copy, straightened_.data());
    widen({.from = straightened_.data(), .type = copy.type, .count = count, .to = floats});
  }

  // Makes a product of gathered rows one that the engine can do, with rows of zeros.
  void pad(RowsProduct& product) {
    const std::int64_t count = product.rows;
    product.a = {.stride = shape_.depth};
    product.rows = round_up(count, row_step(shape_.type));
    while (!engine_->can(product) && product.rows < block_rows_) {
      product.rows = std::min(2 * product.rows, block_rows_);
    }
    const auto bytes = shape_.depth * bytes_of(engine_->type());
    std::fill_n(gathered_.begin() + count * bytes, (product.rows - count) * bytes, std::byte{});
  }

  const float* bias_of(const GroupedBias& bias, std::int64_t group) {
    if (bias.data == nullptr) return nullptr;
    return widened(advance(bias.data, bias.type, group * bias.stride), bias.type, shape_.columns,
                   bias_);
  }

  GroupedShape shape_;
  std::int64_t block_rows_;
  std::unique_ptr<LinearEngine> engine_;  // null if there is nothing to multiply
  std::vector<Weights> given_;
  Buffer<float> weights_as_floats_;  // where the engine takes only these
  Buffer<float> bias_;
  Buffer<float> sums_;
  Buffer<std::byte> gathered_;
  Buffer<std::byte> straightened_;
};

}  // namespace

std::unique_ptr<GroupedEngine> make_common_engine(const GroupedShape& shape) {
  return std::make_unique<CommonEngine>(shape);
}

}  // namespace shiplap::kernels
