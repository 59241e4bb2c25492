// Computes the rows of all four tables from the common refinement of the two layouts of a routing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

// The queries, and what the keys are computed from.
class Router {
 public:
  // A segment in the buffer of its rank.
  struct PlacedSegment {
    Segment segment;
    std::int32_t rank = 0;
    std::uint32_t offset = 0;
    std::uint32_t first_atom = 0;
    std::uint32_t end_atom = 0;
  };
  // Tokens that are contiguous both at home and at attention.
  struct Atom {
    std::uint32_t home = 0;  // index into home().segments
    std::uint32_t item = 0;
    std::uint32_t begin = 0;  // in the document
    std::uint32_t length = 0;
  };
  // A layout with offsets, and its segments sorted by document.
  struct IndexedLayout {
    explicit IndexedLayout(const Layout& layout);
    // Returns the index of the segment of a placeholder: the one that holds its position, or the
    // last before it.
    [[nodiscard]] std::uint32_t holding(const Segment& placeholder) const;
    // Index of the first segment of `rank`.
    [[nodiscard]] std::uint32_t first(int rank) const { return first_of_rank[rank]; }
    [[nodiscard]] std::size_t empty() const { return order.size() - full.size(); }

    std::vector<PlacedSegment> segments;       // by rank, as in the layout
    std::vector<std::uint32_t> first_of_rank;  // and the end
    std::vector<std::uint32_t> order;  // segments by document and begin; empty ones before others
    std::vector<std::uint32_t> full;   // `order` without the empty ones
  };

  // Throws InputError with the findings of validate(routing).
  explicit Router(const Routing& routing);

  [[nodiscard]] MetadataPair queries() const;

  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] const IndexedLayout& home() const { return home_; }
  [[nodiscard]] const IndexedLayout& items() const { return items_; }
  [[nodiscard]] std::span<const Atom> atoms() const { return atoms_; }  // by document and begin
  [[nodiscard]] static Copy at(const PlacedSegment& place, std::uint32_t position) {
    return {.rank = place.rank, .offset = place.offset + (position - place.segment.begin)};
  }

 private:
  enum class Direction : std::uint8_t { forward, reverse };

  void cut();
  [[nodiscard]] Metadata table(Direction direction) const;

  int world_size_;
  IndexedLayout home_;
  IndexedLayout items_;
  std::vector<Atom> atoms_;
};

// The keys. REQUIRES: the router outlives this.
class KeyRouter {
 public:
  KeyRouter(const Router& router, const DispatchOptions& options);

  [[nodiscard]] MetadataPair tables() const { return {.forward = forward(), .reverse = reverse()}; }
  [[nodiscard]] AttentionLayout attention() const;

 private:
  // Consecutive keys of a document in the buffer of a rank: those of one item, or of several items
  // that share them.
  struct Run {
    std::int32_t rank = 0;
    std::uint32_t offset = 0;  // in the buffer
    KeyRange keys;             // in the document
    std::uint32_t first_atom = 0;
    std::uint32_t end_atom = 0;
    bool is_placed = false;
  };
  struct ItemKeys {
    KeyRange keys;  // in the document
    std::uint32_t run = 0;
    std::uint32_t offset = 0;  // of its first key, in the buffer
    bool is_first_of_run = false;
  };
  // Tokens that are contiguous at home and in every run that holds them.
  struct Atom {
    std::uint32_t home = 0;
    std::uint32_t begin = 0;
    std::uint32_t length = 0;
    std::uint32_t first_holder = 0;
    std::uint32_t end_holder = 0;
  };
  // Items of one document, as indices into items().full, and their runs.
  struct Document {
    std::size_t first_item = 0;
    std::size_t end_item = 0;
    std::uint32_t first_run = 0;
  };

  void make_runs(const Document& document);
  void place_runs();
  void cut(const Document& document);
  void begin_run(std::uint32_t run);
  void end_runs(std::uint64_t position);
  void add_atom(const Router::Atom& atom, std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] Metadata forward() const;
  [[nodiscard]] Metadata reverse() const;
  [[nodiscard]] Copy at_home(const Atom& atom) const;
  [[nodiscard]] Copy placeholder(const Segment& home) const;

  const Router& router_;
  DispatchOptions options_;
  std::vector<Run> runs_;                  // by document, then by their first item
  std::vector<ItemKeys> items_;            // by index into items().segments
  std::vector<std::uint32_t> last_;        // run of each rank, of the document that is being added
  std::vector<Atom> atoms_;                // by document and begin
  std::vector<std::uint32_t> holders_;     // runs; consecutive atoms have overlapping parts of it
  std::size_t first_active_ = 0;           // in holders_; the active runs are its tail, by end
  std::vector<std::uint32_t> home_first_;  // atoms of each segment at home, and their end
  std::vector<std::uint32_t> home_end_;
  std::uint32_t max_cp_ = 1;
};

}  // namespace shiplap::dispatch
