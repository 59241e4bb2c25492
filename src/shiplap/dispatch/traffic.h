// How much goes from which rank to which: the matrix of an exchange, as sparse as it is.
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

// Pairs of ranks that exchange anything, by sender, then receiver. What stays on a rank is there
// too.
[[nodiscard]] std::vector<Flow> flows(const Metadata& metadata);

struct TrafficSummary {
  std::uint64_t tokens = 0;         // in all, with what stays
  std::uint64_t between_ranks = 0;  // that leave their rank
  std::uint64_t between_nodes = 0;  // that leave their node
  Flow largest;                     // between two ranks; of equal ones the first
  std::uint64_t most_sent = 0;      // to other ranks by one
  std::uint64_t most_received = 0;
};
// `ranks_per_node` consecutive ranks share a node. Throws InputError D400 if that is below 1.
[[nodiscard]] TrafficSummary summarize(std::span<const Flow> flows, int ranks_per_node);

}  // namespace shiplap::dispatch
