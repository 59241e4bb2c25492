// From a routing to exchange tables.
//
// The problem: the same tokens are stored in two layouts, at home and at attention, each split in
// its own way. A row of a table must be contiguous on both sides.
//
// The idea: sort the segments of both layouts by (document, begin) and merge them. Every boundary
// of either side ends an *atom*, a maximal run of tokens that is contiguous on both sides (the
// common refinement of the two partitions). All four tables list atoms:
//
//   Q forward     the atoms of each home segment, each to its item
//   Q reverse     the atoms of each item, each back home
//   KV forward    the atoms of each home segment, each to its item and the document's later items
//   KV reverse    for each item, all atoms of its document up to its end, each back home (summed)
//
// Invariants: both layouts hold the same tokens (validate(routing) guarantees it), so the merge
// meets both ends at once; the atoms of a segment, an item or a document are consecutive in atoms_.
// Empty segments have no atoms; they become rows of length 0, so that placeholders survive the
// exchange.
//
// Time is O(segments log segments + atoms + copies); nothing is proportional to ranks^2 or tokens.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
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

const Router::PlacedSegment& Router::IndexedLayout::holding(const Segment& placeholder) const {
  const auto key = [&](std::uint32_t i) {
    return std::pair(segments[i].segment.document, segments[i].segment.begin);
  };
  const std::pair wanted(placeholder.document, placeholder.begin);
  const auto next = std::ranges::upper_bound(full, wanted, {}, key);
  if (next != full.begin()) {
    const PlacedSegment& last = segments[*std::prev(next)];
    if (last.segment.document == placeholder.document) return last;
  }
  // The document is empty.
  const auto first = std::ranges::lower_bound(order, std::pair(placeholder.document, 0U), {}, key);
  return segments[*first];
}

// ---- both

Router::Router(const Routing& routing)
    : world_size_(checked_world_size(routing)), home_(routing.home), items_(routing.attention) {
  cut();
  place_keys();
}

// Merges both layouts: every boundary of either ends an atom.
void Router::cut() {
  atoms_.reserve(home_.full.size() + items_.full.size());
  item_order_.reserve(atoms_.capacity());
  std::size_t h = 0;
  std::size_t i = 0;
  std::uint32_t position = 0;
  std::uint32_t document_atom = 0;
  while (h < home_.full.size()) {
    PlacedSegment& home = home_.segments[home_.full[h]];
    PlacedSegment& item = items_.segments[items_.full[i]];
    if (position == 0) document_atom = index(atoms_.size());
    const std::uint64_t end = std::min(home.segment.end(), item.segment.end());
    if (position == home.segment.begin) home.first_atom = index(atoms_.size());
    if (position == item.segment.begin) item.first_atom = index(atoms_.size());
    item.document_atom = document_atom;
    item_order_.push_back(index(i));
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

void Router::place_keys() {
  for (int rank = 0; rank < world_size_; ++rank) {
    std::uint64_t offset = 0;
    for (std::uint32_t i = items_.first(rank); i < items_.first(rank + 1); ++i) {
      PlacedSegment& item = items_.segments[i];
      item.kv_offset = static_cast<std::uint32_t>(offset);
      if (item.segment.length > 0) offset += item.segment.end();
    }
    if (offset > std::numeric_limits<std::uint32_t>::max()) {
      throw InputError(
          Diagnostic{.code = "D410",
                     .where = {.rank = rank},
                     .what = fmt::format("{} tokens of keys do not fit 32 bits", offset)});
    }
  }
  document_end_.resize(items_.full.size());
  for (std::size_t k = items_.full.size(); k-- > 0;) {
    const bool last =
        k + 1 == items_.full.size() || items_.segments[items_.full[k + 1]].segment.document !=
                                           items_.segments[items_.full[k]].segment.document;
    document_end_[k] = last ? index(k + 1) : document_end_[k + 1];
  }
  for (std::size_t k = 0; k < document_end_.size(); k = document_end_[k]) {
    max_cp_ = std::max(max_cp_, static_cast<int>(document_end_[k] - k));
  }
}

Copy Router::at_home(const Atom& atom) const { return at(home_.segments[atom.home], atom.begin); }

// ---- queries

MetadataPair Router::queries() const {
  return {.forward = queries_forward(),
          .reverse = reverse(ArrivalMode::placed, &PlacedSegment::first_atom)};
}

Metadata Router::queries_forward() const {
  Metadata::Builder builder({.world_size = world_size_});
  const std::size_t rows = atoms_.size() + home_.order.size() - home_.full.size();
  builder.reserve({.rows = rows, .copies = rows});
  for (int rank = 0; rank < world_size_; ++rank) {
    for (std::uint32_t i = home_.first(rank); i < home_.first(rank + 1); ++i) {
      const PlacedSegment& home = home_.segments[i];
      if (home.segment.length == 0) {
        const Copy copy = at(items_.holding(home.segment), home.segment.begin);
        builder.add_row(0, {&copy, 1});
      }
      for (std::uint32_t a = home.first_atom; a < home.end_atom; ++a) {
        const Copy copy = at(items_.segments[atoms_[a].item], atoms_[a].begin);
        builder.add_row(atoms_[a].length, {&copy, 1});
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

// ---- keys and values

MetadataPair Router::keys() const {
  return {.forward = keys_forward(),
          .reverse = reverse(ArrivalMode::summed, &PlacedSegment::document_atom)};
}

Metadata Router::keys_forward() const {
  Metadata::Builder builder({.world_size = world_size_, .max_cp = max_cp_});
  const std::size_t empty = home_.order.size() - home_.full.size();
  std::size_t copies = empty;
  for (const std::uint32_t k : item_order_) copies += document_end_[k] - k;
  builder.reserve({.rows = atoms_.size() + empty, .copies = copies});
  std::vector<Copy> row;
  for (int rank = 0; rank < world_size_; ++rank) {
    for (std::uint32_t i = home_.first(rank); i < home_.first(rank + 1); ++i) {
      const PlacedSegment& home = home_.segments[i];
      if (home.segment.length == 0) {
        const PlacedSegment& item = items_.holding(home.segment);
        const std::uint32_t within = item.segment.length > 0 ? home.segment.begin : 0;
        builder.add_row(0, std::array{Copy{.rank = item.rank, .offset = item.kv_offset + within}});
      }
      for (std::uint32_t a = home.first_atom; a < home.end_atom; ++a) {
        row.clear();
        const std::uint32_t end = document_end_[item_order_[a]];
        for (std::uint32_t k = item_order_[a]; k < end; ++k) {
          const PlacedSegment& item = items_.segments[items_.full[k]];
          row.push_back({.rank = item.rank, .offset = item.kv_offset + atoms_[a].begin});
        }
        builder.add_row(atoms_[a].length, row);
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

// The reverse table: for each item, the atoms from `first` to its end go home.
Metadata Router::reverse(ArrivalMode arrival, std::uint32_t PlacedSegment::* first) const {
  Metadata::Builder builder({.world_size = world_size_, .arrival = arrival});
  std::size_t rows = items_.order.size() - items_.full.size();
  for (const std::uint32_t i : items_.full) {
    rows += items_.segments[i].end_atom - items_.segments[i].*first;
  }
  builder.reserve({.rows = rows, .copies = rows});
  for (int rank = 0; rank < world_size_; ++rank) {
    for (std::uint32_t i = items_.first(rank); i < items_.first(rank + 1); ++i) {
      const PlacedSegment& item = items_.segments[i];
      if (item.segment.length == 0) {
        const Copy copy = at(home_.holding(item.segment), item.segment.begin);
        builder.add_row(0, {&copy, 1});
      }
      for (std::uint32_t a = item.*first; a < item.end_atom; ++a) {
        const Copy copy = at_home(atoms_[a]);
        builder.add_row(atoms_[a].length, {&copy, 1});
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

AttentionLayout Router::attention() const {
  std::vector<std::vector<AttentionLayout::Item>> by_rank(world_size_);
  for (const PlacedSegment& item : items_.segments) {
    const Segment& segment = item.segment;
    by_rank[item.rank].push_back(
        {.q_length = segment.length,
         .kv_length = segment.length > 0 ? static_cast<std::uint32_t>(segment.end()) : 0});
  }
  return AttentionLayout(by_rank);
}

}  // namespace shiplap::dispatch
