// bf16 GEMM on AMX tiles.
//
// A tile is 16 rows of 64 bytes. Weights are packed so that every tile is contiguous: panels of 32
// columns; in each, steps of 32 along K; in each step two tiles of 16 columns, where row i has
// elements 2 i and 2 i + 1 of each column as a pair (the VNNI layout). Tiles at the edge are padded
// with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kPanelN = 32;
inline constexpr std::int64_t kStepK = 32;
inline constexpr std::int64_t kStepElements = kPanelN * kStepK;

// Returns whether the processor has AMX and the system permits its use.
[[nodiscard]] bool has_amx();

// Memory for packed weights, on huge pages if available, and not touched before the first write.
struct ArenaDeleter {
  void operator()(void* memory) const;
};
using Arena = std::unique_ptr<Bf16[], ArenaDeleter>;
[[nodiscard]] Arena make_arena(std::int64_t count);

// Packs a k x n matrix of bf16.
void pack_tiles(const ConstMatrixView& weights, Bf16* to);

// Returns the number of panels of this many steps that stay in the L2 cache while all rows use
// them.
[[nodiscard]] std::int64_t l2_panels(std::int64_t steps);

// Rows of whole steps times packed weights. `epilogue` describes the whole GEMM; its sums are not
// set.
struct TilesGemm {
  const Bf16* a = nullptr;
  std::int64_t stride_a = 0;
  std::int64_t steps = 0;              // K / kStepK, rounded up
  const Bf16* weights = nullptr;       // null: packed during the GEMM,
  ConstMatrixView unpacked;            // from this,
  Bf16* pack_buffer = nullptr;         // into this buffer of l2_panels
  const Bf16* next_weights = nullptr;  // of the next GEMM, to prefetch; may be null
  EpilogueStep epilogue;
};
void multiply_tiles(const TilesGemm& gemm);

// The weights of a block of rows.
struct TilesWeights {
  std::int64_t group = 0;
  std::int64_t next = -1;  // the group of the next block; -1: none
  MatrixView given;        // Packing::every_call: the caller's
  // Packing::every_call: whether the run has several blocks, and whether this is the first.
  bool is_long = false;
  bool is_first = true;
};

// Grouped GEMM with weights of one shape. Not thread-safe.
class TilesEngine {
 public:
  explicit TilesEngine(const LinearShape& shape);

  // The maximum number of rows of multiply().
  [[nodiscard]] std::int64_t max_rows() const { return max_rows_; }
  // REQUIRES: Packing::once.
  void prepare(const ConstMatrixView& weights, std::int64_t group);
  void multiply(const ConstMatrixView& a, const TilesWeights& weights,
                const EpilogueStep& epilogue);

 private:
  // Returns the packed weights, or null for Packing::every_call or no group.
  [[nodiscard]] const Bf16* kept(std::int64_t group) const;
  void select_rows(const ConstMatrixView& a, TilesGemm& gemm);

  LinearShape shape_;
  std::int64_t steps_;
  std::int64_t per_group_;  // elements
  std::int64_t max_rows_;
  Arena packed_;           // all weights, or the panels in use
  Buffer<Bf16> gathered_;  // zero-padded along K
};

// Returns null unless the dtype is bf16, AMX is available, and n and k are not 0.
[[nodiscard]] std::unique_ptr<TilesEngine> make_tiles_engine(const LinearShape& shape);

}  // namespace shiplap::kernels
