// Where the bytes of a transfer go.
//
// A message crosses two links of the innermost network, or two adapters and, from leaf to leaf, two
// links of the spine. A collective is one flow: its bytes are those of the whole buffer, and each
// link of each member carries a share of them that follows from the algorithm (docs/hardware.md has
// the table). Latencies come first, while no link is used. Alone, every transfer takes the time of
// the cost model, also where that is slower than the links: the difference is a limit of the flow.
#include <algorithm>
#include <map>

#include "shiplap/cost/cost_model.h"
#include "shiplap/sim/shared_links_internal.h"

namespace shiplap::sim {
namespace {

using hardware::Network;

double capacity_of(const Network& network) {
  return network.bandwidth.bytes_per_second * network.efficiency;
}

FlowSize size_of(Seconds latency, Seconds time, Bytes bytes) {
  const double moving = (time - latency).value;
  if (moving <= 0 || bytes.count == 0) return {.latency = time.value};
  const auto amount = static_cast<double>(bytes.count);
  return {.latency = latency.value, .bytes = amount, .rate = amount / moving};
}

// How often a ring moves the buffer over each of its links.
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
  return 1;
}

}  // namespace

MachineLinks::MachineLinks(const hardware::System& system, std::int64_t ranks) : system_(system) {
  add_links(ranks, capacity_of(system.networks.front()));
  if (system.networks.size() == 1) return;
  const Network& outer = system.networks.back();
  if (system.node) {
    per_node_ = system.node->devices;
    adapters_ = std::min(system.node->adapters, per_node_);
  }
  first_adapter_ = static_cast<std::int32_t>(capacities_.size());
  const std::int64_t nodes = (ranks + per_node_ - 1) / per_node_;
  const double rail =
      capacity_of(outer) * static_cast<double>(per_node_) / static_cast<double>(adapters_);
  add_links(nodes * adapters_, rail);
  if (!outer.leaf) return;
  per_leaf_ = outer.leaf->nodes * per_node_;
  first_spine_ = static_cast<std::int32_t>(capacities_.size());
  const std::int64_t leaves = (ranks + per_leaf_ - 1) / per_leaf_;
  add_links(leaves * adapters_,
            rail * static_cast<double>(outer.leaf->nodes) / outer.leaf->oversubscription);
}

void MachineLinks::add_links(std::int64_t count, double capacity) {
  capacities_.insert(capacities_.end(), 2 * count, capacity);
}

std::int32_t MachineLinks::inner(std::int64_t rank, Direction direction) const {
  return static_cast<std::int32_t>(2 * rank) + direction;
}

std::int64_t MachineLinks::adapter_of(std::int64_t rank) const {
  return rank % per_node_ * adapters_ / per_node_;
}

std::int32_t MachineLinks::adapter(std::int64_t rank, Direction direction) const {
  const std::int64_t number = rank / per_node_ * adapters_ + adapter_of(rank);
  return first_adapter_ + static_cast<std::int32_t>(2 * number) + direction;
}

std::int64_t MachineLinks::leaf_of(std::int64_t rank) const { return rank / per_leaf_; }

std::int32_t MachineLinks::spine(std::int64_t rank, Direction direction) const {
  const std::int64_t number = leaf_of(rank) * adapters_ + adapter_of(rank);
  return first_spine_ + static_cast<std::int32_t>(2 * number) + direction;
}

void MachineLinks::add_use(Transfer& transfer, std::int32_t link, double share) const {
  if (transfer.size.rate <= 0 || share <= 0) return;
  transfer.uses.push_back(
      {.link = link, .share = std::min(share, capacities_[link] / transfer.size.rate)});
}

Transfer MachineLinks::message(Bytes bytes, Rank from, Rank to) const {
  Transfer transfer{.uses = {},
                    .size = size_of(cost::message_time(system_, {}, from, to),
                                    cost::message_time(system_, bytes, from, to), bytes)};
  if (from == to) return transfer;
  const std::int64_t block = system_.networks.front().size;
  if (from.value / block == to.value / block || system_.networks.size() == 1) {
    add_use(transfer, inner(from.value, kOut), 1);
    add_use(transfer, inner(to.value, kIn), 1);
    return transfer;
  }
  add_use(transfer, adapter(from.value, kOut), 1);
  add_use(transfer, adapter(to.value, kIn), 1);
  if (first_spine_ >= 0 && leaf_of(from.value) != leaf_of(to.value)) {
    add_use(transfer, spine(from.value, kOut), 1);
    add_use(transfer, spine(to.value, kIn), 1);
  }
  return transfer;
}

MachineLinks::Shares MachineLinks::shares(CollectiveKind kind, Bytes whole,
                                          const cost::RankSpan& span) const {
  const auto n = static_cast<double>(span.ranks);
  const double ring = ring_share(kind, span.ranks);
  if (!cost::has_collective_rates(system_)) {
    const bool is_inner = &cost::network_for(system_, span) == &system_.networks.front();
    return {.inner = is_inner ? ring : 0, .outer = is_inner ? 0 : ring, .ring = true};
  }
  const auto g = static_cast<double>(std::max<std::int64_t>(1, span.per_domain));
  const double tree = span.domains == 2 ? 1 : 2;
  Shares result;
  switch (cost::estimate_collective(system_, kind, whole, span)->algorithm) {
    case cost::Algorithm::ring:
      result = {.inner = ring, .outer = ring / g, .ring = true};
      break;
    case cost::Algorithm::tree:
      result = {.inner = 2, .outer = tree / g};
      break;
    case cost::Algorithm::in_switch:
    case cost::Algorithm::in_switch_tree:
      result = {.inner = 1, .outer = tree / g};
      break;
    case cost::Algorithm::in_network:
      result = {.inner = 1, .outer = 1 / g};
      break;
    case cost::Algorithm::pairwise:
      result = {.inner = (g - 1) / n, .outer = (n - g) / n};
      break;
  }
  if (span.per_domain == 1) result.inner = 0;
  if (span.domains == 1) result.outer = 0;
  return result;
}

Transfer MachineLinks::collective(CollectiveKind kind, Bytes whole, const plan::RankSet& ranks,
                                  const cost::RankSpan& span) const {
  Transfer transfer{.uses = {},
                    .size = size_of(cost::collective_time(system_, kind, {}, span),
                                    cost::collective_time(system_, kind, whole, span), whole)};
  if (transfer.size.rate <= 0 || span.ranks == 1) return transfer;
  const Shares each = shares(kind, whole, span);
  for (std::int64_t k = 0; k < ranks.size(); ++k) {
    for (const Direction direction : {kOut, kIn}) {
      add_use(transfer, inner(ranks[k].value, direction), each.inner);
      if (system_.networks.size() > 1) {
        add_use(transfer, adapter(ranks[k].value, direction), each.outer);
      }
    }
  }
  if (first_spine_ >= 0 && each.outer > 0) add_spine(transfer, ranks, each);
  return transfer;
}

// A ring leaves a leaf once on each rail; of other collectives, what goes to other leaves does.
void MachineLinks::add_spine(Transfer& transfer, const plan::RankSet& ranks,
                             const Shares& shares) const {
  struct Rail {
    std::int64_t members = 0;
    std::int64_t rank = 0;  // one of them
  };
  std::map<std::int64_t, std::map<std::int64_t, Rail>> leaves;
  for (std::int64_t k = 0; k < ranks.size(); ++k) {
    Rail& rail = leaves[leaf_of(ranks[k].value)][adapter_of(ranks[k].value)];
    ++rail.members;
    rail.rank = ranks[k].value;
  }
  if (leaves.size() < 2) return;
  for (const auto& [leaf, rails] : leaves) {
    std::int64_t members = 0;
    for (const auto& [number, rail] : rails) members += rail.members;
    const double elsewhere = 1 - static_cast<double>(members) / static_cast<double>(ranks.size());
    for (const auto& [number, rail] : rails) {
      const double crossing = shares.ring ? 1 : elsewhere * static_cast<double>(rail.members);
      for (const Direction direction : {kOut, kIn}) {
        add_use(transfer, spine(rail.rank, direction), crossing * shares.outer);
      }
    }
  }
}

}  // namespace shiplap::sim
