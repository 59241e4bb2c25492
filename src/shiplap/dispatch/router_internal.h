// Both layouts of a routing cut where either is cut, and from there the rows of all four tables.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

class Router {
 public:
  // Throws InputError with what validate(routing) finds.
  explicit Router(const Routing& routing);

  [[nodiscard]] MetadataPair queries() const;
  [[nodiscard]] MetadataPair keys() const;
  [[nodiscard]] AttentionLayout attention() const;

 private:
  // A segment in the buffer of its rank.
  struct Place {
    Segment segment;
    std::int32_t rank = 0;
    std::uint32_t offset = 0;
    std::uint32_t kv_offset = 0;      // of an item: where its keys begin on its rank
    std::uint32_t document_atom = 0;  // the first atom of its document
    std::uint32_t first_atom = 0;
    std::uint32_t end_atom = 0;
  };
  // Tokens that lie together at home and at attention.
  struct Atom {
    std::uint32_t home = 0;  // index of a place
    std::uint32_t item = 0;
    std::uint32_t begin = 0;  // in the document
    std::uint32_t length = 0;
  };
  // One of the two layouts.
  struct Side {
    explicit Side(const Layout& layout);
    // Where a placeholder belongs: the place that has token `position`, or the last one before it.
    [[nodiscard]] const Place& holding(const Segment& placeholder) const;
    // Of the places of `rank`.
    [[nodiscard]] std::uint32_t first(int rank) const { return first_of_rank[rank]; }

    std::vector<Place> places;                 // by rank, as in the layout
    std::vector<std::uint32_t> first_of_rank;  // and the end
    std::vector<std::uint32_t> order;  // places by document and begin; empty ones before others
    std::vector<std::uint32_t> full;   // `order` without the empty ones
  };

  void cut();
  void place_keys();
  [[nodiscard]] Metadata queries_forward() const;
  [[nodiscard]] Metadata keys_forward() const;
  [[nodiscard]] Metadata reverse(Arrival arrival, std::uint32_t Place::* first) const;
  [[nodiscard]] Copy at_home(const Atom& atom) const;
  [[nodiscard]] static Copy at(const Place& place, std::uint32_t position) {
    return {.rank = place.rank, .offset = place.offset + (position - place.segment.begin)};
  }

  int world_size_;
  Side home_;
  Side items_;
  std::vector<Atom> atoms_;                  // by document and begin
  std::vector<std::uint32_t> item_order_;    // of an atom: its place in items_.full
  std::vector<std::uint32_t> document_end_;  // by place in items_.full
  int max_cp_ = 1;
};

}  // namespace shiplap::dispatch
