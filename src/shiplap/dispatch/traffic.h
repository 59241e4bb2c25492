// The traffic matrix of an exchange (tokens from rank to rank), sparse.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct Flow {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::uint64_t tokens = 0;
  std::uint32_t pieces = 0;
  friend bool operator==(const Flow&, const Flow&) = default;
};

// Returns the nonzero entries of the traffic matrix, by sender, then receiver, including the
// diagonal.
[[nodiscard]] std::vector<Flow> flows(const Metadata& metadata);

struct TrafficSummary {
  std::uint64_t tokens = 0;         // total, including the diagonal
  std::uint64_t between_ranks = 0;  // off-diagonal
  std::uint64_t between_nodes = 0;  // between ranks of different nodes
  Flow largest;                     // between two ranks; the first if tied
  std::uint64_t max_sent = 0;       // by one rank to other ranks
  std::uint64_t max_received = 0;
};
// `ranks_per_node` consecutive ranks share a node. Throws InputError D400 if that is below 1.
[[nodiscard]] TrafficSummary summarize(std::span<const Flow> flows, int ranks_per_node);

}  // namespace shiplap::dispatch
