// Token layouts: how documents are distributed over ranks at home, and split for attention.
//
// A document is a sequence of tokens; a segment is some consecutive tokens of it. A Layout lists
// the segments of each rank in buffer order. Both sides of a dispatch use it: *home* (where the
// rest of the network runs) and *attention*, where a segment is an *item*: queries that one
// sequence of a variable-length attention call computes.
//
// All counts are in tokens. Empty documents and segments are legal: a batch may contain
// placeholders.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::dispatch {

struct Segment {
  std::int32_t document = 0;
  std::uint32_t begin = 0;  // in the document
  std::uint32_t length = 0;
  friend bool operator==(const Segment&, const Segment&) = default;

  [[nodiscard]] std::uint64_t end() const { return std::uint64_t{begin} + length; }
};

class Layout {
 public:
  Layout() = default;
  // Throws InputError D400 if `by_rank` is empty.
  explicit Layout(const std::vector<std::vector<Segment>>& by_rank);

  [[nodiscard]] int world_size() const { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] std::span<const Segment> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(segments_).subspan(first_[r], first_[r + 1] - first_[r]);
  }
  // The segments of all ranks, concatenated; those of rank r begin at first(r).
  [[nodiscard]] std::span<const Segment> all() const { return segments_; }
  [[nodiscard]] std::uint32_t first(int rank) const { return first_[rank]; }
  [[nodiscard]] std::uint64_t tokens(int rank) const;
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::vector<std::uint32_t> first_{0};  // by rank, and the end
  std::vector<Segment> segments_;
};

// The input of a dispatch: where the tokens are, and where they are needed.
struct Routing {
  Layout home;
  Layout attention;
};

// Returns the problems of a routing, empty if it is valid: a missing (D408) or duplicate (D405)
// token of a document in either layout; a document that only one layout has, or different rank
// counts (D401); more tokens on a rank than fit 32 bits (D410).
[[nodiscard]] std::vector<Diagnostic> validate(const Routing& routing);

// Returns `world_size` times `num_seqs` random lengths, each at least 1, that sum to `total_len` on
// each rank. The cuts are uniform, so lengths are skewed. The same seed gives the same lengths on
// every machine, and those of rank r do not depend on the number of ranks. Throws InputError D400
// if that is impossible.
struct SequenceCounts {
  int world_size = 1;
  int num_seqs = 1;             // on each rank
  std::uint32_t total_len = 1;  // on each rank
};
[[nodiscard]] std::vector<std::vector<std::uint32_t>> gen_seq_lens(const SequenceCounts& counts,
                                                                   std::uint64_t seed);

// Packs documents in order, the same number of tokens on each rank (the last may have fewer),
// splitting documents at rank boundaries. Throws InputError D400 without ranks, D410 if a rank has
// too many.
[[nodiscard]] Layout pack_documents(std::span<const std::uint32_t> lengths, int world_size);

// Splits document d into cp_degree[d] items whose lengths differ by at most one; no item is empty
// unless the document is. Throws InputError D400 if a degree is below 1 or missing.
[[nodiscard]] std::vector<Segment> cut_documents(std::span<const std::uint32_t> lengths,
                                                 std::span<const int> cp_degree);

// Assigns every item to a random rank; items of a rank keep their order. Throws InputError D400
// without ranks.
[[nodiscard]] Layout assign_randomly(std::span<const Segment> items, int world_size,
                                     std::uint64_t seed);

}  // namespace shiplap::dispatch
