// How long a collective takes on a machine, as NCCL would run it: the fastest of its algorithms and
// protocols, each with a latency and a bandwidth term. docs/hardware.md has the formulas,
// docs/accuracy.md compares them with published measurements.
//
// Estimating allocates nothing: a search does it millions of times. (Counting the domains of a
// group does; it is done once.)
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "shiplap/base/collective.h"
#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"

namespace shiplap::cost {

// The size of a group and its extent in rank numbers.
struct RankSpan {
  std::int64_t ranks = 1;
  std::int64_t lowest = 0;
  std::int64_t highest = 0;
  // The domains of the innermost network that the group has ranks in, and the most ranks in one.
  // 0: unknown, the ranks are taken for evenly spaced.
  std::int64_t domains = 0;
  std::int64_t per_domain = 0;
};
// Takes O(size): compute it once per group, not once per rank.
[[nodiscard]] RankSpan rank_span(const plan::RankSet& ranks);
// Also counts the domains, in any order of the ranks. Of the same ranks, each `shift` further on.
[[nodiscard]] RankSpan rank_span(const plan::RankSet& ranks, const hardware::System& system,
                                 std::int64_t shift = 0);
// Whether every collective takes the same time on both. Conservative.
[[nodiscard]] bool is_same_placement(const hardware::System& system, const RankSpan& a,
                                     const RankSpan& b);

// Returns the first network that has a block of `size` consecutive ranks with all of `span`; else
// the last network.
[[nodiscard]] const hardware::Network& network_for(const hardware::System& system,
                                                   const RankSpan& span);

// How many consecutive ranks are below one leaf switch, whole domains of the innermost network. A
// system without `node` has nodes of one domain.
[[nodiscard]] std::int64_t ranks_per_leaf(const hardware::System& system,
                                          const hardware::Leaf& leaf);

enum class Algorithm : std::uint8_t {
  ring,            // through all ranks; between nodes over every rail
  tree,            // a chain within a domain, a double binary tree between domains
  in_switch,       // NVLS: the switches of a domain add and multicast
  in_switch_tree,  // NVLS within domains, a tree between them
  in_network,      // SHARP: the switches between nodes add, too
  pairwise,        // messages between all pairs of ranks
};
enum class Protocol : std::uint8_t { ll, ll128, simple };
[[nodiscard]] std::string_view to_string(Algorithm algorithm);  // "NVLS"
[[nodiscard]] std::string_view to_string(Protocol protocol);    // "LL128"

struct CollectiveEstimate {
  Seconds time;
  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
};

// A machine without Network::collectives has one formula per collective.
[[nodiscard]] bool has_collective_rates(const hardware::System& system);

// Restricts the choice, as NCCL_ALGO and NCCL_PROTO do.
struct CollectiveChoice {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
};

// The fastest algorithm. `whole` is the whole buffer on one rank: the result of an all_gather, the
// input of a reduce_scatter, either of the others. Null if no algorithm is in `choice`. REQUIRES:
// has_collective_rates, span.ranks > 1.
[[nodiscard]] std::optional<CollectiveEstimate> estimate_collective(
    const hardware::System& system, CollectiveKind kind, Bytes whole, const RankSpan& span,
    const CollectiveChoice& choice = {});

// One message between ranks that `network` connects. REQUIRES: network.collectives.
[[nodiscard]] Seconds estimate_message(const hardware::System& system,
                                       const hardware::Network& network, Bytes bytes);

}  // namespace shiplap::cost
