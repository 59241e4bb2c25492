// Machines of one to three networks whose blocks, nodes and leaves lie within each other in any way
// that a hardware file can say: NVLink domains of a part of a node or of several, adapters that
// devices share, leaves with oversubscribed uplinks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/cost/collective.h"
#include "shiplap/hardware/system.h"

namespace shiplap::sim {

class RandomMachine {
 public:
  explicit RandomMachine(Random& random) : random_(random) {
    system_.networks.clear();
    const std::vector<std::int64_t> domains{1, 2, 3, 4, 6, 8, 8, 8};
    const std::int64_t domain = random.pick(domains);
    nodes(domain);
    const bool has_rates = random.chance(0.7);
    const std::int64_t count = random.between(1, 4);
    std::int64_t size = domain;
    for (std::int64_t k = 0; k < count; ++k) {
      if (k > 0) size = next_size(size);
      if (k > 0 && k + 1 == count && random.chance()) size *= 1 << 16;
      add_network(size, has_rates);
    }
  }
  [[nodiscard]] hardware::System system() && { return std::move(system_); }

 private:
  void nodes(std::int64_t domain) {
    devices_ = domain;
    if (random_.chance(0.3)) return;
    if (random_.chance()) {
      devices_ = domain * random_.between(1, 5);
    } else {
      do devices_ = random_.between(1, domain + 1);
      while (domain % devices_ != 0);
    }
    system_.node = {.devices = devices_, .adapters = random_.between(1, devices_ + 1)};
    if (devices_ < domain) system_.node->adapters = devices_;
  }
  // A multiple of the last one: within a node, or of whole nodes.
  std::int64_t next_size(std::int64_t last) {
    if (devices_ % (2 * last) == 0 && random_.chance()) return 2 * last;
    if (last < devices_) return devices_ * random_.between(1, 4);
    return last * random_.between(2, 4);
  }
  void add_network(std::int64_t size, bool has_rates) {
    const bool innermost = system_.networks.empty();
    const auto decimal = [&](double least, double most) {
      return least + (most - least) * random_.unit();
    };
    hardware::Network network{.bandwidth = {innermost ? decimal(1e11, 5e11) : decimal(1e10, 1e11)},
                              .efficiency = decimal(0.5, 1),
                              .size = size,
                              .latency = {decimal(1e-6, 1e-5)},
                              .p2p = {decimal(0.7, 1.5), 0},
                              .reduce_scatter = {decimal(0.9, 1.2), -1},
                              .all_gather = {decimal(0.9, 1.2), -1},
                              .all_reduce = {decimal(1.8, 2.4), -1}};
    if (has_rates) network.collectives = rates();
    if (size > devices_ && !innermost && random_.chance(0.7)) {
      hardware::Leaf leaf{.nodes = random_.between(1, 9), .oversubscription = decimal(1, 5)};
      if (straddles_blocks(network, leaf)) leaf.nodes = 1;
      network.leaf = leaf;
    }
    system_.networks.push_back(network);
  }
  [[nodiscard]] bool straddles_blocks(const hardware::Network& network,
                                      const hardware::Leaf& leaf) const {
    const std::int64_t ranks = cost::ranks_per_leaf(system_, leaf);
    const auto nests = [&](std::int64_t size) { return size % ranks == 0 || ranks % size == 0; };
    return !nests(network.size) ||
           !std::ranges::all_of(system_.networks, nests, &hardware::Network::size);
  }
  hardware::CollectiveRates rates() {
    hardware::CollectiveRates rates{.latency = random_.unit(),
                                    .ll = 0.1 + 0.8 * random_.unit(),
                                    .ll128 = 0.5 + 0.5 * random_.unit(),
                                    .ramp = 1e-8 * random_.unit()};
    if (random_.chance(0.7)) {
      rates.in_switch = {.share = 0.3 + 0.7 * random_.unit(), .ramp = 1e-8 * random_.unit()};
    }
    if (random_.chance()) rates.one_peer = {.bandwidth = {2e10}, .bytes = {1 << 24}};
    return rates;
  }

  Random& random_;
  hardware::System system_ = hardware::zero_cost_system();
  std::int64_t devices_ = 1;
};

}  // namespace shiplap::sim
