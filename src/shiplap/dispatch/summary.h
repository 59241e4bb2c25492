// Summary of a dispatch: its traffic and the load balance of attention. Reports render it as text,
// as JSON and as a page.
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

// The traffic of one of the four tables.
struct ExchangeSummary {
  std::string_view name;  // "Q forward"
  std::string_view key;   // "q_forward"
  std::int64_t row_bytes = 0;
  std::vector<Flow> flows;
  TrafficSummary traffic;
  std::uint64_t pieces = 0;

  [[nodiscard]] Bytes bytes(std::uint64_t tokens) const { return bytes_at(tokens, row_bytes); }
  [[nodiscard]] Bytes between_ranks() const { return bytes(traffic.between_ranks); }
  [[nodiscard]] Bytes between_nodes() const { return bytes(traffic.between_nodes); }
};

// Traffic from one rank to another, forward.
struct RankPair {
  int from = 0;
  int to = 0;
  std::uint64_t q_tokens = 0;
  std::uint64_t kv_tokens = 0;
  Bytes q;
  Bytes kv;
  [[nodiscard]] Bytes total() const { return q + kv; }
};

struct Summary {
  int ranks = 0;
  int ranks_per_node = 1;
  std::uint64_t tokens = 0;
  std::int64_t items = 0;
  std::array<ExchangeSummary, 4> exchanges;  // Q forward, Q reverse, KV forward, KV grad reverse
  std::vector<RankPair> pairs;               // largest first, then by rank
  Mask mask;
  std::vector<double> work;  // pairs of attention, by rank
  double mean_work = 0;
  int busiest = 0;       // the rank with the most work
  double imbalance = 1;  // its work over the mean
  Bytes tables;          // in the sparse form

  [[nodiscard]] const ExchangeSummary& q() const { return exchanges[0]; }
  [[nodiscard]] const ExchangeSummary& kv() const { return exchanges[2]; }
  [[nodiscard]] bool is_across_nodes(const RankPair& pair) const {
    return pair.from / ranks_per_node != pair.to / ranks_per_node;
  }
};

// Bytes of one token, and the ranks per node.
struct RowSizes {
  std::int64_t q_row_bytes = 0;
  std::int64_t kv_row_bytes = 0;
  int ranks_per_node = 8;
};
// Throws InputError D400 if `ranks_per_node` is below 1.
[[nodiscard]] Summary summarize(const QkvDispatch& dispatch, const RowSizes& sizes);

// Measured times of one exchange.
struct ExchangeTimes {
  std::string name;  // "Q forward"
  Bytes bytes;       // between ranks, of all ranks together
  // Of the slowest rank, over the steps.
  Seconds median;
  Seconds min;
  Seconds max;
};

// The result of run::benchmark_dispatch().
struct BenchmarkResult {
  std::vector<ExchangeTimes> exchanges;  // as in Summary
  // Bytes that differ from the reference after the forward exchange or after the round trip.
  std::int64_t wrong_bytes = 0;
  std::int64_t wrong_sums = 0;
  [[nodiscard]] bool is_right() const { return wrong_bytes == 0 && wrong_sums == 0; }
};

}  // namespace shiplap::dispatch
