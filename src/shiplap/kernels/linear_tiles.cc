// Grouped products of bf16 on the tiles of AMX.
//
// Nothing depends on the number of rows but how often the loops run, so sizes that were never seen
// cost what others do. The weights of all groups lie in one piece of memory, and while one product
// is computed those of the next are fetched.
#include <algorithm>
#include <cstddef>

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
bool is_better_copied(const ConstMatrixView& a, std::int64_t columns) {
  return a.stride % 1024 == 0 && a.rows > kTileRows && columns >= 256;
}

// From one gathered row to the next: whole steps, an odd number of them.
std::int64_t gathered_stride(std::int64_t steps) { return (steps | 1) * kStepDepth; }

}  // namespace

TilesEngine::TilesEngine(const LinearShape& shape)
    : shape_(shape),
      steps_(divide_up(shape.depth, kStepDepth)),
      per_group_(steps_ * divide_up(shape.columns, kPanelColumns) * kStepNumbers),
      most_rows_(std::clamp(kMostBytes / (2 * steps_ * kStepDepth) / kLeastRows * kLeastRows,
                            kLeastRows, kMostRows)),
      gathered_(static_cast<std::size_t>(most_rows_ * gathered_stride(steps_))) {
  const std::int64_t kept = shape.packing == Packing::once ? shape.groups : 1;
  packed_ = make_arena(std::max(kept * per_group_, near_panels(steps_) * steps_ * kStepNumbers));
}

void TilesEngine::prepare(const ConstMatrixView& weights, std::int64_t group) {
  pack_tiles(weights, packed_.get() + group * per_group_);
}

const Bf16* TilesEngine::kept(std::int64_t group) const {
  if (group < 0 || shape_.packing == Packing::every_call) return nullptr;
  return packed_.get() + group * per_group_;
}

void TilesEngine::multiply(const ConstMatrixView& a, const TilesWeights& weights,
                           const EpilogueStep& finish) {
  TilesProduct product{.steps = steps_,
                       .weights = kept(weights.group),
                       .unpacked = weights.given,
                       .near = packed_.get(),
                       .next_weights = kept(weights.next),
                       .finish = finish};
  if (product.weights == nullptr && weights.is_long) {
    if (weights.is_first) pack_tiles(product.unpacked, product.near);
    product.weights = product.near;
  }
  find_rows(a, product);
  multiply_tiles(product);
}

// Rows of whole steps are read where they lie.
void TilesEngine::find_rows(const ConstMatrixView& a, TilesProduct& product) {
  product.a = static_cast<const Bf16*>(a.data);
  product.stride_a = a.stride;
  const bool is_whole = !a.is_transposed && shape_.depth % kStepDepth == 0;
  if (is_whole && !is_better_copied(a, shape_.columns)) return;
  product.a = gathered_.data();
  product.stride_a = gathered_stride(steps_);
  copy_rows(a, reinterpret_cast<std::byte*>(gathered_.data()), product.stride_a);
}

std::unique_ptr<TilesEngine> make_tiles_engine(const LinearShape& shape) {
  if (shape.type != DType::bf16 || shape.depth == 0 || shape.columns == 0) return nullptr;
  return has_tiles() ? std::make_unique<TilesEngine>(shape) : nullptr;
}

}  // namespace shiplap::kernels
