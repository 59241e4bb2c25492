// Who has which tokens: how documents lie on ranks at home, and how they are cut for attention.
//
// A document is a run of tokens, a segment some consecutive ones of it. A Layout lists the segments
// of each rank in the order in which they lie in its buffer. The same type serves for both sides of
// a dispatch: at home (where the rest of the network works) and at attention, where a segment is an
// *item*: queries that one kernel call computes together.
//
// Everything is counted in tokens. Empty documents and empty segments are legal: a batch may hold
// placeholders, and they keep their place.
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
  // Throws InputError D400 if there is no rank.
  explicit Layout(const std::vector<std::vector<Segment>>& by_rank);

  [[nodiscard]] int world_size() const { return static_cast<int>(first_.size()) - 1; }
  [[nodiscard]] std::span<const Segment> of(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return std::span(segments_).subspan(first_[r], first_[r + 1] - first_[r]);
  }
  // Of all ranks, one after another; those of rank r begin at first(r).
  [[nodiscard]] std::span<const Segment> all() const { return segments_; }
  [[nodiscard]] std::uint32_t first(int rank) const { return first_[rank]; }
  [[nodiscard]] std::uint64_t tokens(int rank) const;
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::vector<std::uint32_t> first_{0};  // by rank, and the end
  std::vector<Segment> segments_;
};

// What a dispatch is made from: where the tokens are, and where they are wanted.
struct Routing {
  Layout home;
  Layout attention;
};

// What makes a Routing unusable: in either layout a token of a document that is missing (D408) or
// there twice (D405); a document that only one of the two has, or a different number of ranks
// (D401); more tokens on a rank than 32 bits count (D410). Empty if it is sound.
[[nodiscard]] std::vector<Diagnostic> validate(const Routing& routing);

// `world_size` times `num_seqs` lengths, each at least 1, that sum to `total_len` on each rank.
// The cuts are drawn uniformly, so lengths are not: some are long. The same seed gives the same
// lengths on every machine, and rank r has the same ones whatever the number of ranks. Throws
// InputError D400 if that is impossible.
struct SequenceCounts {
  int world_size = 1;
  int num_seqs = 1;             // on each rank
  std::uint32_t total_len = 1;  // on each rank
};
[[nodiscard]] std::vector<std::vector<std::uint32_t>> gen_seq_lens(const SequenceCounts& counts,
                                                                   std::uint64_t seed);

// Document after document, the same number of tokens on each rank (the last ones may have fewer),
// wherever that cuts. Throws InputError D400 without a rank, D410 if a rank would have too many.
[[nodiscard]] Layout pack_documents(std::span<const std::uint32_t> lengths, int world_size);

// Cuts document d into cp_degree[d] items, equal but for one token; no item is empty unless the
// document is. Throws InputError D400 where a degree is below 1 or missing.
[[nodiscard]] std::vector<Segment> cut_documents(std::span<const std::uint32_t> lengths,
                                                 std::span<const int> cp_degree);

// Gives every item to a random rank. On a rank they keep their order. Throws InputError D400
// without a rank.
[[nodiscard]] Layout assign_randomly(std::span<const Segment> items, int world_size,
                                     std::uint64_t seed);

}  // namespace shiplap::dispatch
