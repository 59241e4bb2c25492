#include "shiplap/run/exchange_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"

namespace shiplap::run {
namespace {

using dispatch::Copy;
using dispatch::Metadata;

[[noreturn]] void throw_invalid_row(const char* code, int rank, std::uint32_t row,
                                    std::string what) {
  throw InputError(Diagnostic{.code = code,
                              .where = {.rank = rank, .operation = fmt::format("sequence {}", row)},
                              .what = std::move(what)});
}

// Consecutive tokens sent from one rank to another.
struct Transfer {
  int peer = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint32_t length = 0;
};

// Coalesces adjacent rows: two rows are merged if they are adjacent at both ends and no other row
// for the same rank is between them. Sender and receiver therefore derive the same pieces. Calls
// act(transfer) for each.
class TransferCoalescer {
 public:
  explicit TransferCoalescer(int world_size) : last_(at(world_size)) {}

  template <class Act>
  void for_each_transfer(const Metadata& metadata, int sender, const Act& act) {
    touched_.clear();
    for (std::uint32_t i = 0; i < metadata.num_seqs(sender); ++i) {
      const Metadata::Row row = metadata.row(sender, i);
      if (row.length == 0) continue;
      for (const Copy& copy : row.copies) {
        if (copy.rank == -1) continue;
        if (copy.rank < 0 || copy.rank >= metadata.world_size()) {
          throw_invalid_row("D403", sender, i, fmt::format("rank {} does not exist", copy.rank));
        }
        if (std::uint64_t{copy.offset} + row.length > std::numeric_limits<std::uint32_t>::max()) {
          throw_invalid_row("D410", sender, i,
                            fmt::format("tokens from {} do not fit 32 bits", copy.offset));
        }
        add({.peer = copy.rank, .from = row.begin, .to = copy.offset, .length = row.length}, act);
      }
    }
    for (const int peer : touched_) {
      act(last_[peer]);
      last_[peer] = {};
    }
  }

 private:
  template <class Act>
  void add(const Transfer& piece, const Act& act) {
    Transfer& last = last_[piece.peer];
    if (last.length == 0) {
      touched_.push_back(piece.peer);
      last = piece;
    } else if (last.from + last.length == piece.from && last.to + last.length == piece.to) {
      last.length += piece.length;
    } else {
      act(std::exchange(last, piece));
    }
  }

  std::vector<Transfer> last_;  // by peer; of length 0: none
  std::vector<int> touched_;
};

// Concatenates the lists of all peers.
void flatten(const std::vector<std::vector<ExchangePlan::Piece>>& by_peer,
             std::vector<std::size_t>& first, std::vector<ExchangePlan::Piece>& pieces) {
  first.assign(1, 0);
  for (const auto& list : by_peer) {
    pieces.insert(pieces.end(), list.begin(), list.end());
    first.push_back(pieces.size());
  }
}

void check_overlaps(std::vector<ExchangePlan::Piece> pieces, int rank) {
  std::ranges::sort(pieces, {}, &ExchangePlan::Piece::begin);
  for (std::size_t k = 1; k < pieces.size(); ++k) {
    if (pieces[k].begin >= pieces[k - 1].begin + pieces[k - 1].length) continue;
    throw InputError(
        Diagnostic{.code = "D405",
                   .where = {.rank = rank},
                   .what = fmt::format("two pieces overlap at token {}", pieces[k].begin),
                   .why = "the result would depend on the order of arrival"});
  }
}

// One piece that is added to local tokens.
struct Contribution {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  ExchangePlan::Source source;  // of its first token
};

}  // namespace

ExchangePlan::ExchangePlan(const Metadata& metadata, int rank)
    : rank_(rank), arrival_(metadata.arrival()) {
  if (rank < 0 || rank >= metadata.world_size()) {
    throw InputError(Diagnostic{.code = "D400",
                                .what = fmt::format("rank {} does not exist in a table of {}", rank,
                                                    metadata.world_size())});
  }
  send_tokens_ = metadata.num_send_tokens(rank);
  std::vector<std::vector<Piece>> sends(at(metadata.world_size()));
  std::vector<std::vector<Piece>> receives(at(metadata.world_size()));
  TransferCoalescer coalescer(metadata.world_size());
  for (int sender = 0; sender < metadata.world_size(); ++sender) {
    coalescer.for_each_transfer(metadata, sender, [&](const Transfer& piece) {
      if (sender == rank) {
        sends[piece.peer].push_back({.begin = piece.from, .length = piece.length});
      }
      if (piece.peer != rank) return;
      receives[sender].push_back({.begin = piece.to, .length = piece.length});
      receive_tokens_ = std::max(receive_tokens_, piece.to + piece.length);
      if (sender != rank) arriving_tokens_ += piece.length;
    });
  }
  flatten(sends, first_send_, sends_);
  flatten(receives, first_receive_, receives_);
  if (arrival_ == dispatch::ArrivalMode::summed) {
    if (arriving_tokens_ > std::numeric_limits<std::uint32_t>::max()) {
      throw InputError(Diagnostic{
          .code = "D410",
          .where = {.rank = rank},
          .what = fmt::format("{} tokens that arrive do not fit 32 bits", arriving_tokens_)});
    }
    add_sums();
    stage_arrivals();
  } else {
    check_overlaps(receives_, rank);
  }
}

// Sweep line: splits the buffer wherever a contribution begins or ends. Between two cuts the same
// contributions are added, ordered by rank, then piece.
void ExchangePlan::add_sums() {
  std::vector<Contribution> all;  // in the order in which they are added
  std::vector<std::uint32_t> cuts{0, receive_tokens_};
  std::uint32_t arrived = 0;
  for (int sender = 0; sender < world_size(); ++sender) {
    const std::span<const Piece> pieces = receives_from(sender);
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      const bool is_local = sender == rank_;
      const std::uint32_t end = pieces[k].begin + pieces[k].length;
      all.push_back({.begin = pieces[k].begin,
                     .end = end,
                     .source = {.begin = is_local ? sends_to(rank_)[k].begin : arrived,
                                .is_local = is_local}});
      if (!is_local) arrived += pieces[k].length;
      cuts.push_back(pieces[k].begin);
      cuts.push_back(end);
    }
  }
  std::ranges::sort(cuts);
  cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
  std::vector<std::size_t> by_begin(all.size());
  for (std::size_t k = 0; k < all.size(); ++k) by_begin[k] = k;
  std::ranges::stable_sort(by_begin, {}, [&](std::size_t k) { return all[k].begin; });
  std::vector<std::size_t> active;
  auto next = by_begin.begin();
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    std::erase_if(active, [&](std::size_t k) { return all[k].end <= cuts[c]; });
    for (; next != by_begin.end() && all[*next].begin == cuts[c]; ++next) active.push_back(*next);
    std::ranges::sort(active);
    const auto first = static_cast<std::uint32_t>(sources_.size());
    for (const std::size_t k : active) {
      sources_.push_back({.begin = all[k].source.begin + (cuts[c] - all[k].begin),
                          .is_local = all[k].source.is_local});
    }
    sums_.push_back({.begin = cuts[c],
                     .length = cuts[c + 1] - cuts[c],
                     .first_source = first,
                     .end_source = static_cast<std::uint32_t>(sources_.size())});
  }
}

void ExchangePlan::stage_arrivals() {
  std::vector<std::vector<Piece>> sends(at(world_size()));
  std::vector<std::vector<Piece>> receives(at(world_size()));
  std::uint32_t arrived = 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    sends[peer].assign(sends_to(peer).begin(), sends_to(peer).end());
    for (const Piece& piece : receives_from(peer)) {
      receives[peer].push_back({.begin = arrived, .length = piece.length});
      arrived += piece.length;
    }
  }
  sends_.clear();
  receives_.clear();
  flatten(sends, first_send_, sends_);
  flatten(receives, first_receive_, receives_);
}

Bytes ExchangePlan::bytes() const {
  const std::size_t bytes = sizeof(ExchangePlan) +
                            (first_send_.size() + first_receive_.size()) * sizeof(std::size_t) +
                            (sends_.size() + receives_.size()) * sizeof(Piece) +
                            sums_.size() * sizeof(Sum) + sources_.size() * sizeof(Source);
  return {static_cast<std::int64_t>(bytes)};
}

// ---- workspace

WorkspaceSize elementwise_max(const WorkspaceSize& a, const WorkspaceSize& b) {
  return {.send = std::max(a.send, b.send),
          .receive = std::max(a.receive, b.receive),
          .parts = std::max(a.parts, b.parts)};
}

WorkspaceSize workspace_size(const ExchangePlan& plan, const WorkspaceOptions& options) {
  WorkspaceSize all;
  const auto small_bytes = [&](std::span<const ExchangePlan::Piece> pieces) {
    Bytes bytes;
    for (const ExchangePlan::Piece& piece : pieces) {
      const Bytes size = dispatch::bytes_at(piece.length, options.row_bytes);
      if (static_cast<std::size_t>(size.count) < options.pack_below) bytes += size;
    }
    return bytes;
  };
  std::size_t sends = 0;
  std::size_t receives = 0;
  for (int peer = 0; peer < plan.world_size(); ++peer) {
    sends += plan.sends_to(peer).size();
    receives += plan.receives_from(peer).size();
    if (peer == plan.rank()) continue;
    all.send += small_bytes(plan.sends_to(peer));
    all.receive += small_bytes(plan.receives_from(peer));
  }
  all.parts = std::max(sends, receives);
  if (plan.arrival() == dispatch::ArrivalMode::summed) {
    all.receive += dispatch::bytes_at(plan.arriving_tokens(), options.row_bytes);
  }
  return all;
}

WorkspaceSize workspace_size(const Metadata& metadata, int rank, const WorkspaceOptions& options) {
  return workspace_size(ExchangePlan(metadata, rank), options);
}

}  // namespace shiplap::run
