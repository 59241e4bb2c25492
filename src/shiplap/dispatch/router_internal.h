// Computes the rows of all four tables from the common refinement of the two layouts of a routing.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

class Router {
 public:
  // Throws InputError with the findings of validate(routing).
  explicit Router(const Routing& routing);

  [[nodiscard]] MetadataPair queries() const;
  [[nodiscard]] MetadataPair keys() const;
  [[nodiscard]] AttentionLayout attention() const;

 private:
  // A segment in the buffer of its rank.
  struct PlacedSegment {
    Segment segment;
    std::int32_t rank = 0;
    std::uint32_t offset = 0;
    std::uint32_t kv_offset = 0;      // of an item: offset of its keys on its rank
    std::uint32_t document_atom = 0;  // the first atom of its document
    std::uint32_t first_atom = 0;
    std::uint32_t end_atom = 0;
  };
  // Tokens that are contiguous both at home and at attention.
  struct Atom {
    std::uint32_t home = 0;  // index into home_.segments
    std::uint32_t item = 0;
    std::uint32_t begin = 0;  // in the document
    std::uint32_t length = 0;
  };
  // A layout with offsets, and its segments sorted by document.
  struct IndexedLayout {
    explicit IndexedLayout(const Layout& layout);
    // Returns the segment of a placeholder: the one that holds its position, or the last before it.
    [[nodiscard]] const PlacedSegment& holding(const Segment& placeholder) const;
    // Index of the first segment of `rank`.
    [[nodiscard]] std::uint32_t first(int rank) const { return first_of_rank[rank]; }

    std::vector<PlacedSegment> segments;       // by rank, as in the layout
    std::vector<std::uint32_t> first_of_rank;  // and the end
    std::vector<std::uint32_t> order;  // segments by document and begin; empty ones before others
    std::vector<std::uint32_t> full;   // `order` without the empty ones
  };

  void cut();
  void place_keys();
  [[nodiscard]] Metadata queries_forward() const;
  [[nodiscard]] Metadata keys_forward() const;
  [[nodiscard]] Metadata reverse(ArrivalMode arrival, std::uint32_t PlacedSegment::* first) const;
  [[nodiscard]] Copy at_home(const Atom& atom) const;
  [[nodiscard]] static Copy at(const PlacedSegment& place, std::uint32_t position) {
    return {.rank = place.rank, .offset = place.offset + (position - place.segment.begin)};
  }

  int world_size_;
  IndexedLayout home_;
  IndexedLayout items_;
  std::vector<Atom> atoms_;                  // by document and begin
  std::vector<std::uint32_t> item_order_;    // of an atom: its item's index in items_.full
  std::vector<std::uint32_t> document_end_;  // by index in items_.full: end of the document there
  int max_cp_ = 1;
};

}  // namespace shiplap::dispatch
