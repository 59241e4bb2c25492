// Products of bf16 on the tiles of AMX: what only processors that have them can do.
//
// A tile is 16 rows of 64 bytes. The weights are packed so that every tile of them lies in one
// piece: panels of 32 columns, one behind the other; in each, step after step of 32 of the depth;
// in each step two tiles of 16 columns, where row i has elements 2 i and 2 i + 1 of each column
// side by side. Where the matrix ends, zeros fill the tiles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/epilogue_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kPanelColumns = 32;
inline constexpr std::int64_t kStepDepth = 32;
inline constexpr std::int64_t kStepNumbers = kPanelColumns * kStepDepth;

// Whether this processor has them and the system lets this process use them.
[[nodiscard]] bool has_tiles();

// Memory for packed weights: on large pages where the system has them, and not touched before it is
// written to.
struct Released {
  void operator()(void* memory) const;
};
using Arena = std::unique_ptr<Bf16[], Released>;
[[nodiscard]] Arena make_arena(std::int64_t count);

// A matrix of bf16, depth x columns.
void pack_tiles(const ConstMatrixView& weights, Bf16* to);

// So many panels are used at a time by products of this depth, by all their rows: they stay in the
// second level of the cache.
[[nodiscard]] std::int64_t near_panels(std::int64_t steps);

// Rows of whole steps times packed weights. Of `finish`, rows, columns, bias and results are those
// of the whole product, and it has no sums yet.
struct TilesProduct {
  const Bf16* a = nullptr;
  std::int64_t stride_a = 0;
  std::int64_t steps = 0;              // the depth
  const Bf16* weights = nullptr;       // null: they are packed on the way
  ConstMatrixView unpacked;            // in that case,
  Bf16* near = nullptr;                // into this place for near_panels
  const Bf16* next_weights = nullptr;  // those of the next product, of the same size; may be null
  EpilogueStep finish;
};
void multiply_tiles(const TilesProduct& product);

// By which weights a block of rows is multiplied.
struct TilesWeights {
  std::int64_t group = 0;
  std::int64_t next = -1;  // the group of the next block; -1: there is none
  MatrixView given;        // Packing::every_call: where they lie
  // Packing::every_call: whether the run has more blocks, and which is the first.
  bool is_long = false;
  bool is_first = true;
};

// Weights of groups of one shape, on tiles. One thread at a time may use one.
class TilesEngine {
 public:
  explicit TilesEngine(const LinearShape& shape);

  // Rows that are multiplied at once, at most.
  [[nodiscard]] std::int64_t most_rows() const { return most_rows_; }
  // With Packing::once.
  void prepare(const ConstMatrixView& weights, std::int64_t group);
  void multiply(const ConstMatrixView& a, const TilesWeights& weights, const EpilogueStep& finish);

 private:
  // Null if every call packs, and of no group.
  [[nodiscard]] const Bf16* kept(std::int64_t group) const;
  void find_rows(const ConstMatrixView& a, TilesProduct& product);

  LinearShape shape_;
  std::int64_t steps_;
  std::int64_t per_group_;  // numbers
  std::int64_t most_rows_;
  Arena packed_;           // all weights, or as many panels as are used at a time
  Buffer<Bf16> gathered_;  // zeros behind the depth
};

// For bf16 where there are tiles, and sizes of the weights that are not zero; null otherwise.
[[nodiscard]] std::unique_ptr<TilesEngine> make_tiles_engine(const LinearShape& shape);

}  // namespace shiplap::kernels
