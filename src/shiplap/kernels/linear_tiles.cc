// Grouped bf16 GEMM on AMX tiles.
//
// Only trip counts depend on the number of rows, so a new size costs nothing extra. The packed
// weights of all groups are contiguous, and while one GEMM is computed those of the next are
// prefetched.
#include <algorithm>
#include <cstddef>

#include "shiplap/kernels/rows_internal.h"
#include "shiplap/kernels/tiles_internal.h"

namespace shiplap::kernels {
namespace {

// A long run is split into as many rows as stay in the L2 cache, next to the weights.
constexpr std::int64_t kMaxBytes = 512 << 10;
constexpr std::int64_t kMaxRows = 512;
constexpr std::int64_t kMinRows = 64;

// With such a stride, the same elements of different rows map to few sets of the L1 cache, too few
// for a block (cache associativity conflicts).
bool should_gather(const ConstMatrixView& a, std::int64_t columns) {
  return a.stride % 1024 == 0 && a.rows > kTileRows && columns >= 256;
}

// The stride of gathered rows: an odd number of whole steps.
std::int64_t gathered_stride(std::int64_t steps) { return (steps | 1) * kStepK; }

}  // namespace

TilesEngine::TilesEngine(const LinearShape& shape)
    : shape_(shape),
      steps_(divide_up(shape.k, kStepK)),
      per_group_(steps_ * divide_up(shape.n, kPanelN) * kStepElements),
      max_rows_(
          std::clamp(kMaxBytes / (2 * steps_ * kStepK) / kMinRows * kMinRows, kMinRows, kMaxRows)),
      gathered_(static_cast<std::size_t>(max_rows_ * gathered_stride(steps_))) {
  const std::int64_t kept = shape.packing == Packing::once ? shape.groups : 1;
  packed_ = make_arena(std::max(kept * per_group_, l2_panels(steps_) * steps_ * kStepElements));
}

void TilesEngine::prepare(const ConstMatrixView& weights, std::int64_t group) {
  pack_tiles(weights, packed_.get() + group * per_group_);
}

const Bf16* TilesEngine::kept(std::int64_t group) const {
  if (group < 0 || shape_.packing == Packing::every_call) return nullptr;
  return packed_.get() + group * per_group_;
}

void TilesEngine::multiply(const ConstMatrixView& a, const TilesWeights& weights,
                           const EpilogueStep& epilogue) {
  TilesGemm gemm{.steps = steps_,
                 .weights = kept(weights.group),
                 .unpacked = weights.given,
                 .pack_buffer = packed_.get(),
                 .next_weights = kept(weights.next),
                 .epilogue = epilogue};
  if (gemm.weights == nullptr && weights.is_long) {
    if (weights.is_first) pack_tiles(gemm.unpacked, gemm.pack_buffer);
    gemm.weights = gemm.pack_buffer;
  }
  select_rows(a, gemm);
  multiply_tiles(gemm);
}

// Rows of whole steps are read in place.
void TilesEngine::select_rows(const ConstMatrixView& a, TilesGemm& gemm) {
  gemm.a = static_cast<const Bf16*>(a.data);
  gemm.stride_a = a.stride;
  const bool is_whole = !a.is_transposed && shape_.k % kStepK == 0;
  if (is_whole && !should_gather(a, shape_.n)) return;
  gemm.a = gathered_.data();
  gemm.stride_a = gathered_stride(steps_);
  copy_rows(a, reinterpret_cast<std::byte*>(gathered_.data()), gemm.stride_a);
}

std::unique_ptr<TilesEngine> make_tiles_engine(const LinearShape& shape) {
  if (shape.type != DType::bf16 || shape.k == 0 || shape.n == 0) return nullptr;
  return has_amx() ? std::make_unique<TilesEngine>(shape) : nullptr;
}

}  // namespace shiplap::kernels
