// What one dispatch moves, and how even the work is that it leads to: the numbers that are told of
// it as text, as JSON and on a page.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/traffic.h"

namespace shiplap::dispatch {

// One of the four ways.
struct Exchange {
  std::string_view name;  // "Q there"
  std::string_view key;   // "q_forward"
  std::int64_t row_bytes = 0;
  std::vector<Flow> flows;
  TrafficSummary traffic;
  std::uint64_t pieces = 0;

  [[nodiscard]] Bytes bytes(std::uint64_t tokens) const { return bytes_at(tokens, row_bytes); }
  [[nodiscard]] Bytes between_ranks() const { return bytes(traffic.between_ranks); }
  [[nodiscard]] Bytes between_nodes() const { return bytes(traffic.between_nodes); }
};

// What one rank sends another on the way there.
struct RankPair {
  int from = 0;
  int to = 0;
  std::uint64_t q_tokens = 0;
  std::uint64_t kv_tokens = 0;
  Bytes q;
  Bytes kv;
  [[nodiscard]] Bytes together() const { return q + kv; }
};

struct Summary {
  int ranks = 0;
  int ranks_per_node = 1;
  std::uint64_t tokens = 0;
  std::int64_t items = 0;
  std::array<Exchange, 4> exchanges;  // Q there, Q back, KV there, KV gradients back
  std::vector<RankPair> pairs;        // the largest first; of equal ones the first by rank
  std::vector<double> work;           // causal pairs of attention, by rank
  double mean_work = 0;
  int busiest = 0;       // the rank with the most
  double imbalance = 1;  // its work over the mean
  Bytes tables;          // in the sparse form

  [[nodiscard]] const Exchange& q() const { return exchanges[0]; }
  [[nodiscard]] const Exchange& kv() const { return exchanges[2]; }
  [[nodiscard]] bool is_across_nodes(const RankPair& pair) const {
    return pair.from / ranks_per_node != pair.to / ranks_per_node;
  }
};

// Of one token, and who shares a node.
struct RowSizes {
  std::int64_t q_row_bytes = 0;
  std::int64_t kv_row_bytes = 0;
  int ranks_per_node = 8;
};
// Throws InputError D400 if `ranks_per_node` is below 1.
[[nodiscard]] Summary summarize(const QkvDispatch& dispatch, const RowSizes& sizes);

// One of the four ways, measured.
struct TrialTimes {
  std::string name;  // "Q there"
  Bytes bytes;       // between ranks, of all ranks together
  // Of the slowest rank: the median over the steps, the least and the most.
  Seconds median;
  Seconds least;
  Seconds most;
};

// A dispatch that was carried out: see run/dispatch_trial.h.
struct Trial {
  std::vector<TrialTimes> exchanges;  // as in Summary
  // Bytes that are not where the tables say, or did not come back as they were.
  std::int64_t wrong_bytes = 0;
  std::int64_t wrong_sums = 0;
  [[nodiscard]] bool is_right() const { return wrong_bytes == 0 && wrong_sums == 0; }
};

}  // namespace shiplap::dispatch
