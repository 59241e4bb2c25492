// Grouped products of bf16 on the tiles of AMX.
//
// Nothing depends on the number of rows but how often the loops run, so sizes that were never seen
// cost what others do. The weights of all groups lie in one piece of memory, and while one product
// is computed those of the next are fetched.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/grouped_internal.h"
#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

// Of a long run so many rows at once that they stay in the second level of the cache, next to the
// weights.
constexpr std::int64_t kMostBytes = 512 << 10;
constexpr std::int64_t kMostRows = 512;
constexpr std::int64_t kLeastRows = 64;

// With such a stride the same elements of different rows share few places of the first level of the
// cache, too few for a block.
bool is_better_copied(std::int64_t stride, const TilesProduct& product) {
  return stride % 1024 == 0 && product.finish.rows > kTileRows && product.finish.columns >= 256;
}

class TilesEngine final : public GroupedEngine {
 public:
  explicit TilesEngine(const GroupedShape& shape)
      : shape_(shape),
        steps_(divide_up(shape.depth, kStepDepth)),
        per_group_(steps_ * divide_up(shape.columns, kPanelColumns) * kStepNumbers),
        most_rows_(std::clamp(kMostBytes / (2 * steps_ * kStepDepth) / kLeastRows * kLeastRows,
                              kLeastRows, kMostRows)),
        given_(static_cast<std::size_t>(shape.groups)),
        gathered_(static_cast<std::size_t>(most_rows_ * gathered_stride())),
        bias_(static_cast<std::size_t>(shape.columns)) {
    const std::int64_t kept = shape.packing == Packing::once ? shape.groups : 1;
    packed_ = make_arena(std::max(kept * per_group_, near_panels(steps_) * panel()));
  }

  [[nodiscard]] std::string_view name() const override { return "tiles of AMX"; }

  void prepare(std::int64_t group, const Weights& weights) override {
    PackTiles pack{.from = static_cast<const Bf16*>(weights.data),
                   .depth = shape_.depth,
                   .columns = shape_.columns,
                   .down = weights.is_transposed ? 1 : weights.stride,
                   .right = weights.is_transposed ? weights.stride : 1};
    given_[group] = pack;
    if (shape_.packing == Packing::every_call) return;
    pack_tiles(pack, packed(group));
  }

  void multiply(const GroupedCall& call) override {
    std::int64_t first = 0;
    for (std::size_t i = next(call, 0); i < call.runs.size(); i = next(call, i + 1)) {
      const GroupRows& run = call.runs[i];
      const std::size_t after = next(call, i + 1);
      const Bf16* const later = after < call.runs.size() ? kept(call.runs[after].group) : nullptr;
      multiply_run(call, run, first, later);
      first += run.rows;
    }
  }

 private:
  // Whole steps, an odd number of them.
  [[nodiscard]] std::int64_t gathered_stride() const { return (steps_ | 1) * kStepDepth; }
  [[nodiscard]] std::int64_t panel() const { return steps_ * kStepNumbers; }
  [[nodiscard]] Bf16* packed(std::int64_t group) const {
    return packed_.get() + group * per_group_;
  }

  // Null if every call packs.
  [[nodiscard]] const Bf16* kept(std::int64_t group) const {
    return shape_.packing == Packing::once ? packed(group) : nullptr;
  }

  // The first run from `i` on that has rows.
  static std::size_t next(const GroupedCall& call, std::size_t i) {
    while (i < call.runs.size() && call.runs[i].rows == 0) ++i;
    return i;
  }

  void multiply_run(const GroupedCall& call, const GroupRows& run, std::int64_t first,
                    const Bf16* later) {
    TilesProduct product{.steps = steps_,
                         .weights = kept(run.group),
                         .unpacked = given_[run.group],
                         .near = packed_.get()};
    if (product.weights == nullptr && run.rows > most_rows_) {
      pack_tiles(product.unpacked, product.near);
      product.weights = product.near;
    }
    product.finish = {.columns = shape_.columns,
                      .bias = bias_of(call.epilogue.bias, run.group),
                      .alpha = call.epilogue.alpha,
                      .beta = call.epilogue.beta,
                      .activation = call.epilogue.activation};
    for (std::int64_t done = 0; done < run.rows; done += most_rows_) {
      const std::int64_t rows = std::min(most_rows_, run.rows - done);
      product.finish.rows = rows;
      product.finish.c = advance(call.c, first + done);
      product.finish.before_activation = advance(call.epilogue.before_activation, first + done);
      product.next_weights = done + rows < run.rows ? product.weights : later;
      find_rows(call.a, first + done, product);
      multiply_tiles(product);
    }
  }

  // Rows of whole steps are read where they lie.
  void find_rows(const Rows& a, std::int64_t first, TilesProduct& product) {
    const auto* const rows = static_cast<const Bf16*>(
        advance(a.data, DType::bf16, first * (a.is_transposed ? 1 : a.stride)));
    product.a = rows;
    product.stride_a = a.stride;
    const bool is_whole = !a.is_transposed && shape_.depth % kStepDepth == 0;
    if (is_whole && !is_better_copied(a.stride, product)) return;
    product.stride_a = gathered_stride();
    copy_as_it_is({.from = rows,
                   .type = DType::bf16,
                   .layout = layout_of(a.is_transposed, a.stride),
                   .rows = product.finish.rows,
                   .columns = shape_.depth,
                   .stride_to = product.stride_a},
                  reinterpret_cast<std::byte*>(gathered_.data()));
    product.a = gathered_.data();
  }

  const float* bias_of(const GroupedBias& bias, std::int64_t group) {
    if (bias.data == nullptr) return nullptr;
    return widened(advance(bias.data, bias.type, group * bias.stride), bias.type, shape_.columns,
                   bias_);
  }

  GroupedShape shape_;
  std::int64_t steps_;
  std::int64_t per_group_;  // numbers
  std::int64_t most_rows_;
  std::vector<PackTiles> given_;
  Arena packed_;           // all weights, or as many panels as are used at a time
  Buffer<Bf16> gathered_;  // zeros behind the depth
  Buffer<float> bias_;
};

}  // namespace

std::unique_ptr<GroupedEngine> make_tiles_engine(const GroupedShape& shape) {
  if (shape.type != DType::bf16 || shape.depth == 0 || shape.columns == 0) return nullptr;
  return has_tiles() ? std::make_unique<TilesEngine>(shape) : nullptr;
}

}  // namespace shiplap::kernels
