// Where the bytes of a transfer go.
//
// Problem: which links of a machine does a transfer load, and with how many of its bytes?
//
// Idea: every transfer is a set of hops, from one rank to another, each with a share of the bytes.
// A message is one hop. The hops of a collective are those of its algorithm (cost/collective.h):
// the edges of its rings and trees, on every rail, or the messages between all pairs. A hop crosses
// the link out of its sender and the link into its receiver, of the innermost network that connects
// both, and between two leaves the uplink and the downlink of their rails. The loads of all hops
// add up to one flow, which loads every link at once. A rank within a domain is as good as any
// other: NCCL rotates its rings and trees, so that each of them carries the same.
//
// - A ring through domains exists once per rail, with a part of the bytes: it enters a domain at
//   one member, passes through the others, and goes on to the next domain from the adapter at which
//   it entered (PXN, NCCL_CROSS_NIC=0). Ranks that share an adapter load it together.
// - Trees are a chain within a domain, and between domains two binary trees of which each has half
//   of the bytes; a domain is a leaf in one and an inner node in the other (P. Sanders, J. Speck,
//   J. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009). So all
//   domains but the roots carry the same. The mean counts for all: a machine that is symmetric
//   stays so.
// - What a switch adds, leaves a rank once and returns once.
//
// Alone, every transfer takes the time of the cost model: where that is slower than the links, the
// difference is a limit of the flow, and where it is faster, the link counts with less. Latencies
// come first, while no link is used.
#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/sim/machine_links_internal.h"

namespace shiplap::sim {
namespace {

using hardware::Network;

// Each link has two directions, with consecutive numbers.
constexpr std::int32_t kOut = 0;
constexpr std::int32_t kIn = 1;
// Loads that differ by rounding are equal.
constexpr double kSame = 1 - 1e-9;

double capacity_of(const Network& network) {
  return network.bandwidth.bytes_per_second * network.efficiency;
}

FlowSize size_of(Seconds latency, Seconds time, Bytes bytes) {
  const double moving = (time - latency).value;
  if (moving <= 0 || bytes.count == 0) return {.latency = time.value};
  const auto amount = static_cast<double>(bytes.count);
  return {.latency = latency.value, .bytes = amount, .rate = amount / moving};
}

// How often a ring moves the buffer over each of its edges.
double ring_share(CollectiveKind kind, std::int64_t ranks) {
  const auto n = static_cast<double>(ranks);
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
    case CollectiveKind::barrier:
      return 1;
  }
  throw InternalError("unknown collective");
}

// How many ranks of a group are in the same block as one of them, and how many of those below the
// same leaf.
class PeerCounts {
 public:
  struct Sizes {
    std::int64_t block = 1;
    std::int64_t leaf = 0;  // 0: there are none
  };
  PeerCounts(std::span<const std::int64_t> ranks, const Sizes& sizes) : sizes_(sizes) {
    for (const std::int64_t rank : ranks) {
      ++blocks_[rank / sizes.block];
      if (sizes.leaf > 0) ++leaves_[{rank / sizes.block, rank / sizes.leaf}];
    }
  }
  [[nodiscard]] std::int64_t in_block(std::int64_t rank) const {
    return blocks_.at(rank / sizes_.block);
  }
  [[nodiscard]] std::int64_t in_leaf(std::int64_t rank) const {
    return leaves_.at({rank / sizes_.block, rank / sizes_.leaf});
  }

 private:
  Sizes sizes_;
  std::map<std::int64_t, std::int64_t> blocks_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> leaves_;
};

}  // namespace

MachineLinks::MachineLinks(const hardware::System& system, std::int64_t ranks)
    : system_(system), ranks_(ranks) {
  for (const Network& network : system.networks) add_level(network);
}

void MachineLinks::add_level(const Network& network) {
  Level level{.network = &network};
  const bool is_innermost = levels_.empty();
  if (!is_innermost && system_.node && network.size > system_.node->devices) {
    level.devices = system_.node->devices;
    level.adapters = std::min(system_.node->adapters, level.devices);
  }
  const double per_adapter = capacity_of(network) * static_cast<double>(level.devices) /
                             static_cast<double>(level.adapters);
  level.first = static_cast<std::int32_t>(std::ssize(capacities_));
  add_links((ranks_ + level.devices - 1) / level.devices * level.adapters, per_adapter);
  if (network.leaf) {
    level.per_leaf = cost::ranks_per_leaf(system_, *network.leaf);
    const std::int64_t node =
        system_.node ? level.devices : std::min(ranks_, system_.networks.front().size);
    level.rails = system_.node ? level.adapters : node;
    level.first_spine = static_cast<std::int32_t>(std::ssize(capacities_));
    const auto adapters = static_cast<double>(std::max<std::int64_t>(1, level.per_leaf / node));
    add_links((ranks_ + level.per_leaf - 1) / level.per_leaf * level.rails,
              per_adapter * adapters / network.leaf->oversubscription);
  }
  levels_.push_back(level);
}

void MachineLinks::add_links(std::int64_t count, double capacity) {
  capacities_.insert(capacities_.end(), 2 * count, capacity);
}

const MachineLinks::Level& MachineLinks::level_between(std::int64_t a, std::int64_t b) const {
  const auto [lowest, highest] = std::minmax(a, b);
  const Network& network =
      cost::network_for(system_, {.ranks = 2, .lowest = lowest, .highest = highest});
  return levels_[static_cast<std::size_t>(&network - system_.networks.data())];
}

std::int64_t MachineLinks::rail_of(const Level& level, std::int64_t rank) {
  if (level.devices == 1) return level.rails == 0 ? 0 : rank % level.rails;
  return rank % level.devices * level.adapters / level.devices;
}

std::int32_t MachineLinks::link_of(const Level& level, std::int64_t rank) {
  const std::int64_t adapter =
      rank / level.devices * level.adapters + rank % level.devices * level.adapters / level.devices;
  return level.first + static_cast<std::int32_t>(2 * adapter);
}

std::int32_t MachineLinks::spine_of(const Level& level, std::int64_t rank) {
  const std::int64_t uplink = rank / level.per_leaf * level.rails + rail_of(level, rank);
  return level.first_spine + static_cast<std::int32_t>(2 * uplink);
}

std::vector<std::int32_t> MachineLinks::links_of(std::int64_t rank) const {
  std::vector<std::int32_t> links;
  for (const Level& level : levels_) {
    links.push_back(link_of(level, rank));
    if (level.per_leaf > 0) links.push_back(spine_of(level, rank));
  }
  return links;
}

std::vector<std::int64_t> MachineLinks::blocks() const {
  std::vector<std::int64_t> blocks;
  for (const Level& level : levels_) {
    blocks.push_back(level.network->size);
    blocks.push_back(level.devices);
    if (level.per_leaf > 0) blocks.push_back(level.per_leaf);
  }
  return blocks;
}

std::vector<std::int64_t> MachineLinks::places_of(std::int64_t rank) const {
  std::vector<std::int64_t> places;
  for (const Level& level : levels_) {
    places.push_back(rank / level.network->size);
    if (level.per_leaf > 0) places.push_back(rank / level.per_leaf);
  }
  return places;
}

// The loads of a transfer on each link, for each of its bytes.
class Traffic {
 public:
  explicit Traffic(const MachineLinks& links) : links_(links) {}

  // From one rank to another.
  void hop(std::int64_t from, std::int64_t to, double share) {
    if (from != to) hop(links_.level_between(from, to), from, to, share);
  }

  // A ring through all ranks in this order, over one network, as in Calculon's formulas.
  void plain_ring(const Network& network, std::span<const std::int64_t> ranks, double share) {
    const auto at = static_cast<std::size_t>(&network - links_.system_.networks.data());
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      hop(links_.levels_[at], ranks[k], ranks[(k + 1) % ranks.size()], share);
    }
  }

  void collective(CollectiveKind kind, cost::Algorithm algorithm,
                  std::span<const std::int64_t> ranks) {
    find_domains(ranks);
    switch (algorithm) {
      case cost::Algorithm::ring:
        return rings(ring_share(kind, std::ssize(ranks)));
      case cost::Algorithm::tree:
        within_domains([](double m) { return 2 * (m - 1) / m; });
        return trees();
      case cost::Algorithm::in_switch:
      case cost::Algorithm::in_switch_tree:
        within_domains([](double m) { return 1 + 1 / m; });
        return trees();
      case cost::Algorithm::in_network:
        within_domains([](double m) { return 1 + 1 / m; });
        return reduced_in_network();
      case cost::Algorithm::pairwise:
        return pairs(ranks, 1 / static_cast<double>(ranks.size()), 0);
    }
  }

  // Adds the links to a transfer. Its bytes are then those on the link that it loads most: that is
  // where it has its fair part among others.
  void add_to(Transfer& transfer) const {
    double busiest = 0;
    for (const auto& [link, load] : loads_) {
      const double capacity = links_.capacities_[link];
      const double share = std::min(load, capacity / transfer.size.rate);
      transfer.uses.push_back({.link = link, .share = share});
      busiest = std::max(busiest, share / capacity);
    }
    if (busiest == 0) {  // links of infinite bandwidth
      transfer.uses.clear();
      return;
    }
    // Of links that are equally busy, that with the most bytes.
    double share_there = 0;
    for (const LinkUse& use : transfer.uses) {
      const bool is_busiest = use.share >= busiest * links_.capacities_[use.link] * kSame;
      if (is_busiest) share_there = std::max(share_there, use.share);
    }
    transfer.size.bytes *= share_there;
    transfer.size.rate *= share_there;
    for (LinkUse& use : transfer.uses) use.share /= share_there;
  }

 private:
  using Level = MachineLinks::Level;

  void load(std::int32_t link, double share) {
    if (share > 0) loads_[link] += share;
  }
  void load_both(std::int32_t link, double share) {
    load(link + kOut, share);
    load(link + kIn, share);
  }
  void hop(const Level& level, std::int64_t from, std::int64_t to, double share) {
    load(MachineLinks::link_of(level, from) + kOut, share);
    load(MachineLinks::link_of(level, to) + kIn, share);
    if (level.per_leaf == 0 || from / level.per_leaf == to / level.per_leaf) return;
    load(MachineLinks::spine_of(level, from) + kOut, share);
    load(MachineLinks::spine_of(level, to) + kIn, share);
  }

  void find_domains(std::span<const std::int64_t> ranks) {
    const std::int64_t size = links_.system_.networks.front().size;
    for (std::size_t k = 0; k < ranks.size(); ++k) {
      if (k == 0 || ranks[k] / size != ranks[k - 1] / size) domains_.emplace_back();
      domains_.back().push_back(ranks[k]);
      rails_ = std::max(rails_, std::ssize(domains_.back()));
    }
  }
  [[nodiscard]] std::int64_t domains() const { return std::ssize(domains_); }
  // The member of a domain at whose adapter a rail enters and leaves it.
  [[nodiscard]] std::int64_t member(std::int64_t domain, std::int64_t rail) const {
    const std::vector<std::int64_t>& members = domains_[domain];
    return members[rail % std::ssize(members)];
  }

  // In every domain of several members, each sends and receives `share_of(members)` inside.
  template <class ShareOf>
  void within_domains(ShareOf share_of) {
    for (const std::vector<std::int64_t>& members : domains_) {
      if (members.size() == 1) continue;
      const double share = share_of(static_cast<double>(members.size()));
      for (const std::int64_t rank : members) {
        load_both(MachineLinks::link_of(links_.levels_.front(), rank), share);
      }
    }
  }
  // From one domain to another, spread over the rails.
  void domain_hop(std::int64_t from, std::int64_t to, double share) {
    for (std::int64_t rail = 0; rail < rails_; ++rail) {
      hop(member(from, rail), member(to, rail), share / static_cast<double>(rails_));
    }
  }

  void rings(double share) {
    if (domains() == 1) return within_domains([&](double /*members*/) { return share; });
    // Of the edges of a ring through m members, m - 1 are inside.
    within_domains([&](double m) { return share * (m - 1) / m; });
    for (std::int64_t domain = 0; domain < domains(); ++domain) {
      domain_hop(domain, (domain + 1) % domains(), share);
    }
  }

  // The edges of both trees, 2 (D - 1) of D domains, carry half of the bytes up, reduced, and half
  // of them down. The roots carry less than others: the mean of all domains counts, as if there
  // were an edge between any two.
  void trees() {
    const double part = 2 / (static_cast<double>(domains()) * static_cast<double>(rails_));
    for (std::int64_t rail = 0; domains() > 1 && rail < rails_; ++rail) {
      std::vector<std::int64_t> members;
      for (std::int64_t domain = 0; domain < domains(); ++domain) {
        members.push_back(member(domain, rail));
      }
      pairs(members, part, 1);
    }
  }

  // The switches of each rail add: a leaf sends the sum of what it received.
  void reduced_in_network() {
    if (domains() == 1) return;
    const double share = 1 / static_cast<double>(rails_);
    const Level& level = links_.level_between(domains_.front().front(), domains_.back().back());
    std::map<std::int32_t, double> uplinks;
    for (std::int64_t domain = 0; domain < domains(); ++domain) {
      std::map<std::int32_t, double> here;
      for (std::int64_t rail = 0; rail < rails_; ++rail) {
        load_both(MachineLinks::link_of(level, member(domain, rail)), share);
        if (level.per_leaf > 0) here[MachineLinks::spine_of(level, member(domain, rail))] += share;
      }
      for (const auto& [uplink, sum] : here) uplinks[uplink] = std::max(uplinks[uplink], sum);
    }
    const bool one_leaf = level.per_leaf == 0 || domains_.front().front() / level.per_leaf ==
                                                     domains_.back().back() / level.per_leaf;
    if (one_leaf) return;
    for (const auto& [uplink, sum] : uplinks) load_both(uplink, sum);
  }

  // Each rank sends a part to every other. The ranks of a network that a smaller one does not
  // connect are counted, instead of visiting all pairs. REQUIRES: no two ranks are connected by a
  // network before the first.
  void pairs(std::span<const std::int64_t> ranks, double part, std::size_t first) {
    std::int64_t nearer_block = first == 0 ? 1 : links_.levels_[first - 1].network->size;
    const std::size_t last = links_.levels_.size() - 1;  // connects all ranks, whatever its size
    for (std::size_t k = std::min(first, last); k <= last; ++k) {
      const Level& level = links_.levels_[k];
      const bool is_last = k == last;
      const std::int64_t block = is_last ? links_.ranks_ : level.network->size;
      const PeerCounts peers(ranks, {.block = block, .leaf = level.per_leaf});
      const PeerCounts nearer(ranks, {.block = nearer_block, .leaf = level.per_leaf});
      for (const std::int64_t rank : ranks) {
        const std::int64_t here = peers.in_block(rank) - nearer.in_block(rank);
        load_both(MachineLinks::link_of(level, rank), part * static_cast<double>(here));
        if (level.per_leaf == 0) continue;
        const std::int64_t same_leaf = peers.in_leaf(rank) - nearer.in_leaf(rank);
        load_both(MachineLinks::spine_of(level, rank),
                  part * static_cast<double>(here - same_leaf));
      }
      nearer_block = block;
    }
  }

  const MachineLinks& links_;
  std::vector<std::vector<std::int64_t>> domains_;
  std::int64_t rails_ = 0;
  std::map<std::int32_t, double> loads_;
};

Transfer MachineLinks::message(Bytes bytes, Rank from, Rank to) const {
  Transfer transfer{.uses = {},
                    .size = size_of(cost::message_time(system_, {}, from, to),
                                    cost::message_time(system_, bytes, from, to), bytes)};
  if (transfer.size.rate <= 0) return transfer;
  Traffic traffic(*this);
  traffic.hop(from.value, to.value, 1);
  traffic.add_to(transfer);
  return transfer;
}

Transfer MachineLinks::collective(CollectiveKind kind, Bytes whole, const plan::RankSet& ranks,
                                  const cost::RankSpan& span) const {
  Transfer transfer{.uses = {},
                    .size = size_of(cost::collective_time(system_, kind, {}, span),
                                    cost::collective_time(system_, kind, whole, span), whole)};
  if (transfer.size.rate <= 0 || span.ranks == 1) return transfer;
  std::vector<std::int64_t> members;
  for (std::int64_t k = 0; k < ranks.size(); ++k) members.push_back(ranks[k].value);
  std::ranges::sort(members);
  Traffic traffic(*this);
  if (cost::has_collective_rates(system_)) {
    const auto chosen = cost::estimate_collective(system_, kind, whole, span);
    if (!chosen) throw InternalError("there is no algorithm for a collective");
    traffic.collective(kind, chosen->algorithm, members);
  } else {
    traffic.plain_ring(cost::network_for(system_, span), members, ring_share(kind, span.ranks));
  }
  traffic.add_to(transfer);
  return transfer;
}

}  // namespace shiplap::sim
