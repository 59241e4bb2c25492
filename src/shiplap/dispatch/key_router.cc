// The tables of keys and values.
//
// The problem: a key goes to every item that attends to it, and an item must find its keys in one
// piece. Which keys those are follows from the mask; they are consecutive (mask.h).
//
// The idea: a *run* is a range of keys that lies in the buffer of a rank in one piece: the keys of
// one item, or, if keys are shared, the union of the overlapping ranges of several items of a
// document on one rank. A sweep over the positions of a document keeps the list of the runs that
// hold the current position. Every change of this list, and every end of an atom of the queries,
// ends an atom of the keys:
//
//   KV forward    the atoms of each home segment, each to all runs that hold it
//   KV reverse    the atoms of each run, each back home (summed)
//
// The lists of consecutive atoms are mostly the same, so they are parts of one array: the active
// runs are its tail, ordered by their end. A run that ends leaves at the front; one that begins is
// appended, if no other ends after it, which is always so without sharing. Else the tail is copied.
// With causal masks this takes one entry per run, where one list per atom would take as much memory
// as the table.
//
// Time is O(runs log runs + atoms + copies).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/dispatch/router_internal.h"

namespace shiplap::dispatch {
namespace {

constexpr std::uint32_t kNoRun = std::numeric_limits<std::uint32_t>::max();

std::uint32_t as_index(std::size_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

KeyRouter::KeyRouter(const Router& router, const DispatchOptions& options)
    : router_(router),
      options_(options),
      items_(router.items().segments.size()),
      last_(static_cast<std::size_t>(router.world_size()), kNoRun),
      home_first_(router.home().segments.size()),
      home_end_(router.home().segments.size()) {
  const std::vector<std::uint32_t>& full = router.items().full;
  const auto document_of = [&](std::size_t k) {
    return router.items().segments[full[k]].segment.document;
  };
  runs_.reserve(full.size());
  atoms_.reserve(router.atoms().size());
  holders_.reserve(full.size());
  for (std::size_t first = 0; first < full.size();) {
    std::size_t end = first + 1;
    while (end < full.size() && document_of(end) == document_of(first)) ++end;
    const Document document{
        .first_item = first, .end_item = end, .first_run = as_index(runs_.size())};
    make_runs(document);
    cut(document);
    first = end;
  }
  place_runs();
}

// ---- runs

void KeyRouter::make_runs(const Document& document) {
  const Router::IndexedLayout& items = router_.items();
  const std::uint64_t length = items.segments[items.full[document.end_item - 1]].segment.end();
  for (std::size_t k = document.first_item; k < document.end_item; ++k) {
    const std::uint32_t i = items.full[k];
    const std::int32_t rank = items.segments[i].rank;
    items_[i].keys = options_.mask.keys_of(items.segments[i].segment, length);
    const std::uint32_t last = last_[rank];
    // Neither end of a range decreases, so only the last run of the rank can overlap.
    const bool overlaps = options_.shares_keys && last != kNoRun && last >= document.first_run &&
                          items_[i].keys.begin < runs_[last].keys.end;
    if (overlaps) {
      runs_[last].keys.end = std::max(runs_[last].keys.end, items_[i].keys.end);
    } else {
      last_[rank] = as_index(runs_.size());
      runs_.push_back({.rank = rank, .keys = items_[i].keys});
    }
    items_[i].run = last_[rank];
  }
}

void KeyRouter::place_runs() {
  for (int rank = 0; rank < router_.world_size(); ++rank) {
    std::uint64_t offset = 0;
    for (std::uint32_t i = router_.items().first(rank); i < router_.items().first(rank + 1); ++i) {
      throw_if_cancelled();
      ItemKeys& item = items_[i];
      item.offset = as_index(offset);
      if (item.keys.length() == 0) continue;
      Run& run = runs_[item.run];
      if (!run.is_placed) {
        item.is_first_of_run = true;
        run.is_placed = true;
        run.offset = as_index(offset);
        offset += run.keys.length();
      }
      item.offset = run.offset + static_cast<std::uint32_t>(item.keys.begin - run.keys.begin);
    }
    if (offset > std::numeric_limits<std::uint32_t>::max()) {
      throw InputError(
          Diagnostic{.code = "D410",
                     .where = {.rank = rank},
                     .what = fmt::format("{} tokens of keys do not fit 32 bits", offset)});
    }
  }
}

// ---- atoms

void KeyRouter::cut(const Document& document) {
  const Router::IndexedLayout& items = router_.items();
  std::vector<std::uint32_t> by_begin(runs_.size() - document.first_run);
  std::iota(by_begin.begin(), by_begin.end(), document.first_run);
  const auto begin_of = [&](std::uint32_t run) { return runs_[run].keys.begin; };
  if (!std::ranges::is_sorted(by_begin, {}, begin_of)) {
    std::ranges::stable_sort(by_begin, {}, begin_of);
  }
  first_active_ = holders_.size();
  auto next = by_begin.begin();
  const std::uint32_t first_atom = items.segments[items.full[document.first_item]].first_atom;
  const std::uint32_t end_atom = items.segments[items.full[document.end_item - 1]].end_atom;
  for (std::uint32_t a = first_atom; a < end_atom; ++a) {
    throw_if_cancelled();
    const Router::Atom& atom = router_.atoms()[a];
    const std::uint64_t end = std::uint64_t{atom.begin} + atom.length;
    for (std::uint64_t position = atom.begin; position < end;) {
      end_runs(position);
      while (next != by_begin.end() && begin_of(*next) == position) begin_run(*next++);
      std::uint64_t cut = std::min(end, runs_[holders_[first_active_]].keys.end);
      if (next != by_begin.end()) cut = std::min(cut, begin_of(*next));
      add_atom(atom, position, cut);
      position = cut;
    }
  }
  end_runs(std::numeric_limits<std::uint64_t>::max());
}

void KeyRouter::begin_run(std::uint32_t run) {
  runs_[run].first_atom = as_index(atoms_.size());
  const auto end_of = [&](std::uint32_t one) { return runs_[one].keys.end; };
  const bool is_last = first_active_ == holders_.size() || end_of(holders_.back()) <= end_of(run);
  if (!is_last) {
    // Atoms refer to the tail as it is: change a copy.
    const std::vector<std::uint32_t> active(
        holders_.begin() + static_cast<std::ptrdiff_t>(first_active_), holders_.end());
    first_active_ = holders_.size();
    holders_.insert(holders_.end(), active.begin(), active.end());
  }
  const auto active = holders_.begin() + static_cast<std::ptrdiff_t>(first_active_);
  const auto later =
      std::upper_bound(active, holders_.end(), end_of(run),
                       [&](std::uint64_t end, std::uint32_t one) { return end < end_of(one); });
  holders_.insert(later, run);
}

void KeyRouter::end_runs(std::uint64_t position) {
  while (first_active_ < holders_.size()) {
    Run& run = runs_[holders_[first_active_]];
    if (run.keys.end > position) return;
    run.end_atom = as_index(atoms_.size());
    ++first_active_;
  }
}

void KeyRouter::add_atom(const Router::Atom& atom, std::uint64_t begin, std::uint64_t end) {
  if (home_end_[atom.home] == 0) home_first_[atom.home] = as_index(atoms_.size());
  atoms_.push_back({.home = atom.home,
                    .begin = static_cast<std::uint32_t>(begin),
                    .length = static_cast<std::uint32_t>(end - begin),
                    .first_holder = as_index(first_active_),
                    .end_holder = as_index(holders_.size())});
  home_end_[atom.home] = as_index(atoms_.size());
  max_cp_ = std::max(max_cp_, atoms_.back().end_holder - atoms_.back().first_holder);
}

// ---- tables

Copy KeyRouter::at_home(const Atom& atom) const {
  return Router::at(router_.home().segments[atom.home], atom.begin);
}

// A placeholder at home has no keys; its destination is where they would be.
Copy KeyRouter::placeholder(const Segment& home) const {
  const std::uint32_t i = router_.items().holding(home);
  const std::int32_t rank = router_.items().segments[i].rank;
  const ItemKeys& item = items_[i];
  if (item.keys.length() == 0) return {.rank = rank, .offset = item.offset};
  const Run& run = runs_[item.run];
  const std::uint64_t position =
      std::clamp<std::uint64_t>(home.begin, run.keys.begin, run.keys.end);
  return {.rank = rank,
          .offset = run.offset + static_cast<std::uint32_t>(position - run.keys.begin)};
}

Metadata KeyRouter::forward() const {
  const Router::IndexedLayout& home = router_.home();
  Metadata::Builder builder(
      {.world_size = router_.world_size(), .max_cp = static_cast<int>(max_cp_)});
  std::size_t copies = home.empty();
  for (const Atom& atom : atoms_) copies += atom.end_holder - atom.first_holder;
  builder.reserve({.rows = atoms_.size() + home.empty(), .copies = copies});
  std::vector<Copy> row;
  for (int rank = 0; rank < router_.world_size(); ++rank) {
    for (std::uint32_t i = home.first(rank); i < home.first(rank + 1); ++i) {
      throw_if_cancelled();
      if (home.segments[i].segment.length == 0) {
        builder.add_row(0, std::array{placeholder(home.segments[i].segment)});
      }
      for (std::uint32_t a = home_first_[i]; a < home_end_[i]; ++a) {
        row.clear();
        for (std::uint32_t k = atoms_[a].first_holder; k < atoms_[a].end_holder; ++k) {
          const Run& run = runs_[holders_[k]];
          row.push_back({.rank = run.rank,
                         .offset = run.offset +
                                   static_cast<std::uint32_t>(atoms_[a].begin - run.keys.begin)});
        }
        builder.add_row(atoms_[a].length, row);
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

Metadata KeyRouter::reverse() const {
  const Router::IndexedLayout& items = router_.items();
  Metadata::Builder builder({.world_size = router_.world_size(), .arrival = ArrivalMode::summed});
  std::size_t rows = items.empty();
  for (const Run& run : runs_) rows += run.end_atom - run.first_atom;
  builder.reserve({.rows = rows, .copies = rows});
  for (int rank = 0; rank < router_.world_size(); ++rank) {
    for (std::uint32_t i = items.first(rank); i < items.first(rank + 1); ++i) {
      throw_if_cancelled();
      const Segment& segment = items.segments[i].segment;
      if (segment.length == 0) {
        const Copy copy =
            Router::at(router_.home().segments[router_.home().holding(segment)], segment.begin);
        builder.add_row(0, {&copy, 1});
      }
      if (!items_[i].is_first_of_run) continue;
      const Run& run = runs_[items_[i].run];
      for (std::uint32_t a = run.first_atom; a < run.end_atom; ++a) {
        const Copy copy = at_home(atoms_[a]);
        builder.add_row(atoms_[a].length, {&copy, 1});
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

AttentionLayout KeyRouter::attention() const {
  std::vector<std::vector<AttentionLayout::Item>> by_rank(router_.world_size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    throw_if_cancelled();
    const Router::PlacedSegment& item = router_.items().segments[i];
    by_rank[item.rank].push_back({.q_length = item.segment.length,
                                  .kv_length = static_cast<std::uint32_t>(items_[i].keys.length()),
                                  .kv_begin = items_[i].offset});
  }
  return AttentionLayout(by_rank, options_);
}

}  // namespace shiplap::dispatch
