#include "shiplap/dispatch/indices.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"

namespace shiplap::dispatch {
namespace {

// Consecutive received tokens: arrivals `first`, first+1, .. go to rows `place`, place+1, ..
struct IndexPiece {
  std::int64_t place = 0;
  std::int64_t length = 0;
  std::int64_t first = 0;
  [[nodiscard]] std::int64_t end() const { return place + length; }
};

[[noreturn]] void throw_invalid_row(const char* code, int rank, std::uint32_t row,
                                    std::string what) {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank, .operation = fmt::format("sequence {}", row)},
                              .what = std::move(what)});
}

void check(const Metadata& metadata, int sender, std::uint32_t index, const Metadata::Row& row,
           const Copy& copy) {
  if (copy.rank < 0 || copy.rank >= metadata.world_size()) {
    throw_invalid_row("D403", sender, index, fmt::format("rank {} does not exist", copy.rank));
  }
  if (std::uint64_t{copy.offset} + row.length > std::numeric_limits<std::uint32_t>::max()) {
    throw_invalid_row("D410", sender, index,
                      fmt::format("tokens from {} do not fit 32 bits", copy.offset));
  }
}

// Calls act(row, copy) for every nonempty copy, in row order. Throws D403, D410.
template <class Act>
void for_each_copy(const Metadata& metadata, int sender, const Act& act) {
  for (std::uint32_t i = 0; i < metadata.num_seqs(sender); ++i) {
    const Metadata::Row row = metadata.row(sender, i);
    if (row.length == 0) continue;
    for (const Copy& copy : row.copies) {
      if (copy.rank == -1) continue;
      check(metadata, sender, i, row, copy);
      act(row, copy);
    }
  }
}

void append_run(std::vector<std::int64_t>& values, std::int64_t first, std::int64_t length) {
  const std::size_t old = values.size();
  values.resize(old + static_cast<std::size_t>(length));
  std::iota(values.begin() + static_cast<std::ptrdiff_t>(old), values.end(), first);
}

// Counting sort by receiving rank.
void add_sends(const Metadata& metadata, ExchangeIndices& indices) {
  indices.send_counts.resize(at(metadata.world_size()));
  for_each_copy(metadata, indices.rank, [&](const Metadata::Row& row, const Copy& copy) {
    indices.send_counts[copy.rank] += row.length;
  });
  std::vector<std::int64_t> next(indices.send_counts.size());
  std::exclusive_scan(indices.send_counts.begin(), indices.send_counts.end(), next.begin(),
                      std::int64_t{0});
  const std::int64_t all =
      std::accumulate(indices.send_counts.begin(), indices.send_counts.end(), std::int64_t{0});
  indices.send_rows.resize(all);
  for_each_copy(metadata, indices.rank, [&](const Metadata::Row& row, const Copy& copy) {
    const auto begin = indices.send_rows.begin() + next[copy.rank];
    std::iota(begin, begin + row.length, std::int64_t{row.begin});
    next[copy.rank] += row.length;
  });
}

std::vector<IndexPiece> add_arrivals(const Metadata& metadata, ExchangeIndices& indices) {
  std::vector<IndexPiece> pieces;
  std::int64_t arrived = 0;
  for (int sender = 0; sender < metadata.world_size(); ++sender) {
    const std::int64_t before = arrived;
    for_each_copy(metadata, sender, [&](const Metadata::Row& row, const Copy& copy) {
      if (copy.rank != indices.rank) return;
      pieces.push_back({.place = copy.offset, .length = row.length, .first = arrived});
      arrived += row.length;
      indices.receive_tokens = std::max(indices.receive_tokens, pieces.back().end());
    });
    indices.recv_counts.push_back(arrived - before);
  }
  indices.recv_rows.reserve(arrived);
  for (const IndexPiece& piece : pieces) append_run(indices.recv_rows, piece.place, piece.length);
  return pieces;
}

void check_overlaps(std::vector<IndexPiece> pieces, int rank) {
  std::ranges::sort(pieces, {}, &IndexPiece::place);
  for (std::size_t k = 1; k < pieces.size(); ++k) {
    if (pieces[k].place >= pieces[k - 1].end()) continue;
    throw InputError(
        Diagnostic{.code = "D405",
                   .where = {.rank = rank},
                   .what = fmt::format("two pieces overlap at token {}", pieces[k].place),
                   .why = "the result would depend on the order of arrival"});
  }
}

// Sweeps over the destination rows, split wherever a piece begins or ends. Between two cuts the
// same pieces arrive; the k-th of them, in order of arrival, belongs to level k.
class Levels {
 public:
  explicit Levels(std::vector<IndexPiece> pieces) : pieces_(std::move(pieces)) {
    std::vector<std::int64_t> cuts;
    for (const IndexPiece& piece : pieces_) {
      cuts.push_back(piece.place);
      cuts.push_back(piece.end());
    }
    std::ranges::sort(cuts);
    const auto duplicates = std::ranges::unique(cuts);
    cuts.erase(duplicates.begin(), duplicates.end());
    std::ranges::sort(pieces_, {},
                      [](const IndexPiece& piece) { return std::pair(piece.place, piece.first); });
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k) between(cuts[k], cuts[k + 1]);
  }

  void write(ExchangeIndices& indices) const {
    indices.level_rows.reserve(indices.recv_rows.size());
    indices.level_arrivals.reserve(indices.recv_rows.size());
    for (const std::vector<IndexPiece>& level : levels_) {
      for (const IndexPiece& run : level) {
        append_run(indices.level_rows, run.place, run.length);
        append_run(indices.level_arrivals, run.first, run.length);
      }
      indices.level_ends.push_back(std::ssize(indices.level_rows));
    }
  }

 private:
  void between(std::int64_t begin, std::int64_t end) {
    std::erase_if(here_, [&](const IndexPiece& piece) { return piece.end() <= begin; });
    for (; next_ < pieces_.size() && pieces_[next_].place == begin; ++next_) {
      const auto later =
          std::ranges::upper_bound(here_, pieces_[next_].first, {}, &IndexPiece::first);
      here_.insert(later, pieces_[next_]);
    }
    if (levels_.size() < here_.size()) levels_.resize(here_.size());
    for (std::size_t k = 0; k < here_.size(); ++k) {
      levels_[k].push_back({.place = begin,
                            .length = end - begin,
                            .first = here_[k].first + (begin - here_[k].place)});
    }
  }

  std::vector<IndexPiece> pieces_;  // by place
  std::size_t next_ = 0;
  std::vector<IndexPiece> here_;  // pieces that cover the current row, by arrival
  std::vector<std::vector<IndexPiece>> levels_;
};

}  // namespace

ExchangeIndices exchange_indices(const Metadata& metadata, int rank) {
  if (rank < 0 || rank >= metadata.world_size()) {
    throw InputError(Diagnostic{.code = "D400",
                                .what = fmt::format("rank {} does not exist in a table of {}", rank,
                                                    metadata.world_size())});
  }
  ExchangeIndices indices{
      .rank = rank, .arrival = metadata.arrival(), .send_tokens = metadata.num_send_tokens(rank)};
  add_sends(metadata, indices);
  std::vector<IndexPiece> pieces = add_arrivals(metadata, indices);
  if (metadata.arrival() == ArrivalMode::summed) {
    Levels(std::move(pieces)).write(indices);
  } else {
    check_overlaps(std::move(pieces), rank);
  }
  return indices;
}

}  // namespace shiplap::dispatch
