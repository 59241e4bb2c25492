// From a routing to exchange tables.
//
// The problem: the same tokens are stored in two layouts, at home and at attention, each split in
// its own way. A row of a table must be contiguous on both sides.
//
// The idea: sort the segments of both layouts by (document, begin) and merge them. Every boundary
// of either side ends an *atom*, a maximal run of tokens that is contiguous on both sides (the
// common refinement of the two partitions). The tables of queries list atoms:
//
//   Q forward     the atoms of each home segment, each to its item
//   Q reverse     the atoms of each item, each back home
//
// key_router.cc computes those of the keys, from the same atoms.
//
// Invariants: both layouts hold the same tokens (validate(routing) guarantees it), so the merge
// meets both ends at once; the atoms of a segment, an item or a document are consecutive in atoms_.
// Empty segments have no atoms; they become rows of length 0, so that placeholders survive the
// exchange.
//
// Time is O(segments log segments + atoms + copies); nothing is proportional to ranks^2 or tokens.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/dispatch/router_internal.h"

namespace shiplap::dispatch {
namespace {

int checked_world_size(const Routing& routing) {
  if (std::vector<Diagnostic> found = validate(routing); !found.empty()) {
    throw InputError(std::move(found));
  }
  return routing.home.world_size();
}

std::uint32_t index(std::size_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

// ---- one layout

Router::IndexedLayout::IndexedLayout(const Layout& layout) {
  segments.reserve(layout.all().size());
  first_of_rank.reserve(static_cast<std::size_t>(layout.world_size()) + 1);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    first_of_rank.push_back(index(segments.size()));
    std::uint32_t offset = 0;
    for (const Segment& segment : layout.of(rank)) {
      segments.push_back({.segment = segment, .rank = rank, .offset = offset});
      offset += segment.length;
    }
  }
  first_of_rank.push_back(index(segments.size()));
  order.resize(segments.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto key = [&](std::uint32_t i) {
    const Segment& segment = segments[i].segment;
    return std::tuple(segment.document, segment.begin, segment.length > 0, i);
  };
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); };
  if (!std::ranges::is_sorted(order, before)) std::ranges::sort(order, before);
  full.reserve(order.size());
  std::ranges::copy_if(order, std::back_inserter(full),
                       [&](std::uint32_t i) { return segments[i].segment.length > 0; });
}

std::uint32_t Router::IndexedLayout::holding(const Segment& placeholder) const {
  const auto key = [&](std::uint32_t i) {
    return std::pair(segments[i].segment.document, segments[i].segment.begin);
  };
  const std::pair wanted(placeholder.document, placeholder.begin);
  const auto next = std::ranges::upper_bound(full, wanted, {}, key);
  if (next != full.begin()) {
    const std::uint32_t last = *std::prev(next);
    if (segments[last].segment.document == placeholder.document) return last;
  }
  // The document is empty.
  return *std::ranges::lower_bound(order, std::pair(placeholder.document, 0U), {}, key);
}

// ---- both

Router::Router(const Routing& routing)
    : world_size_(checked_world_size(routing)), home_(routing.home), items_(routing.attention) {
  cut();
}

// Merges both layouts: every boundary of either ends an atom.
void Router::cut() {
  atoms_.reserve(home_.full.size() + items_.full.size());
  std::size_t h = 0;
  std::size_t i = 0;
  std::uint32_t position = 0;
  while (h < home_.full.size()) {
    PlacedSegment& home = home_.segments[home_.full[h]];
    PlacedSegment& item = items_.segments[items_.full[i]];
    const std::uint64_t end = std::min(home.segment.end(), item.segment.end());
    if (position == home.segment.begin) home.first_atom = index(atoms_.size());
    if (position == item.segment.begin) item.first_atom = index(atoms_.size());
    atoms_.push_back({.home = home_.full[h],
                      .item = items_.full[i],
                      .begin = position,
                      .length = static_cast<std::uint32_t>(end - position)});
    home.end_atom = item.end_atom = index(atoms_.size());
    const bool home_ends = end == home.segment.end();
    const bool item_ends = end == item.segment.end();
    position = static_cast<std::uint32_t>(end);
    if (home_ends) ++h;
    if (item_ends) ++i;
    // A new document begins where both sides end and the next segment is of another document.
    if (home_ends && item_ends && h < home_.full.size() &&
        home_.segments[home_.full[h]].segment.document != home.segment.document) {
      position = 0;
    }
  }
}

// ---- queries

MetadataPair Router::queries() const {
  return {.forward = table(Direction::forward), .reverse = table(Direction::reverse)};
}

Metadata Router::table(Direction direction) const {
  const bool is_forward = direction == Direction::forward;
  const IndexedLayout& from = is_forward ? home_ : items_;
  const IndexedLayout& to = is_forward ? items_ : home_;
  const auto target = is_forward ? &Atom::item : &Atom::home;
  Metadata::Builder builder({.world_size = world_size_});
  const std::size_t rows = atoms_.size() + from.empty();
  builder.reserve({.rows = rows, .copies = rows});
  for (int rank = 0; rank < world_size_; ++rank) {
    for (std::uint32_t i = from.first(rank); i < from.first(rank + 1); ++i) {
      const PlacedSegment& placed = from.segments[i];
      if (placed.segment.length == 0) {
        const Copy copy = at(to.segments[to.holding(placed.segment)], placed.segment.begin);
        builder.add_row(0, {&copy, 1});
      }
      for (std::uint32_t a = placed.first_atom; a < placed.end_atom; ++a) {
        const Copy copy = at(to.segments[atoms_[a].*target], atoms_[a].begin);
        builder.add_row(atoms_[a].length, {&copy, 1});
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

}  // namespace shiplap::dispatch
