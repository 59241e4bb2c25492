// The witness of machine_links.cc: links have names, and every algorithm is played, hop by hop, as
// docs/simulate.md ("Shared links") describes it. Shares nothing with it but the cost model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/cost/collective.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"

namespace shiplap::sim {

enum class WitnessDirection : std::uint8_t { out, in };

// The links of a machine, by name.
class LinkWitness {
 public:
  explicit LinkWitness(const hardware::System& system) : system_(&system) {}
  [[nodiscard]] const hardware::System& system() const { return *system_; }

  // The innermost network with a block that has both.
  [[nodiscard]] std::size_t network_of(std::int64_t a, std::int64_t b) const {
    std::size_t k = 0;
    while (k + 1 < networks().size() && a / networks()[k].size != b / networks()[k].size) ++k;
    return k;
  }
  // The link of a rank into a network, "network 1 node 3 adapter 0 out".
  std::string port(std::size_t network, std::int64_t rank, WitnessDirection direction) {
    if (network == 0 || is_within_node(network) || !system_->node) {
      return link(of(network) + " rank " + std::to_string(rank), direction, rate(network));
    }
    return link(of(network) + " node " + std::to_string(rank / devices()) + " adapter " +
                    std::to_string(adapter(rank)),
                direction, adapter_rate(network));
  }
  [[nodiscard]] bool has_leaves(std::size_t network) const {
    return networks()[network].leaf.has_value();
  }
  [[nodiscard]] std::int64_t leaf(std::size_t network, std::int64_t rank) const {
    return rank / ranks_of_leaf(network);
  }
  // The link between its leaf and the spine, on its rail.
  std::string spine(std::size_t network, std::int64_t rank, WitnessDirection direction) {
    const std::int64_t rail = system_->node ? adapter(rank) : rank % domain();
    const auto nodes = static_cast<double>(ranks_of_leaf(network)) / static_cast<double>(devices());
    return link(of(network) + " leaf " + std::to_string(leaf(network, rank)) + " rail " +
                    std::to_string(rail),
                direction, nodes * adapter_rate(network) / leaf_of(network).oversubscription);
  }
  // Bytes per second of all links that were named so far.
  [[nodiscard]] const std::map<std::string, double>& capacities() const { return capacities_; }
  [[nodiscard]] std::int64_t domain() const { return networks().front().size; }

 private:
  [[nodiscard]] const std::vector<hardware::Network>& networks() const { return system_->networks; }
  [[nodiscard]] std::int64_t devices() const { return system_->node ? node().devices : domain(); }
  [[nodiscard]] hardware::Node node() const { return system_->node.value_or(hardware::Node{}); }
  [[nodiscard]] hardware::Leaf leaf_of(std::size_t network) const {
    return networks()[network].leaf.value_or(hardware::Leaf{});
  }
  [[nodiscard]] bool is_within_node(std::size_t network) const {
    return networks()[network].size <= devices();
  }
  [[nodiscard]] std::int64_t adapter(std::int64_t rank) const {
    return rank % devices() * node().adapters / devices();
  }
  [[nodiscard]] double rate(std::size_t network) const {
    return networks()[network].bandwidth.bytes_per_second * networks()[network].efficiency;
  }
  // All adapters of a node are alike, and together they carry what its devices do.
  [[nodiscard]] double adapter_rate(std::size_t network) const {
    if (!system_->node) return rate(network);
    return rate(network) * static_cast<double>(devices()) / static_cast<double>(node().adapters);
  }
  // Whole nodes, rounded down to whole domains.
  [[nodiscard]] std::int64_t ranks_of_leaf(std::size_t network) const {
    std::int64_t ranks = leaf_of(network).nodes * devices();
    while (ranks % domain() != 0 && ranks > domain()) --ranks;
    return std::max(ranks, domain());
  }
  static std::string of(std::size_t network) { return "network " + std::to_string(network); }
  std::string link(std::string name, WitnessDirection direction, double capacity) {
    name += direction == WitnessDirection::out ? " out" : " in";
    capacities_[name] = capacity;
    return name;
  }

  const hardware::System* system_;
  std::map<std::string, double> capacities_;
};

// An edge of a tree: parent and child.
using WitnessEdge = std::pair<std::size_t, std::size_t>;

// The first of NCCL's two trees (src/graph/trees.cc): node 0 above a perfect binary search tree of
// 1 to 2^k - 1, in which the left child takes the place of a node that does not exist.
class WitnessTree {
 public:
  explicit WitnessTree(std::size_t nodes) : nodes_(nodes) {
    std::size_t width = 1;
    while (width < nodes) width *= 2;
    hang(0, {.above = 0, .width = width});
  }
  [[nodiscard]] std::vector<WitnessEdge> edges() && { return std::move(edges_); }

 private:
  struct Below {
    std::size_t above = 0;  // all nodes are larger
    std::size_t width = 0;
  };
  void hang(std::size_t parent, Below below) {
    const std::size_t half = below.width / 2;
    if (half == 0) return;
    const std::size_t node = below.above + half;
    if (node >= nodes_) {
      hang(parent, {.above = below.above, .width = half});
      return;
    }
    edges_.emplace_back(parent, node);
    hang(node, {.above = below.above, .width = half});
    hang(node, {.above = node, .width = half});
  }
  std::size_t nodes_;
  std::vector<WitnessEdge> edges_;
};

// The second one is the first in a mirror, or of an odd number of nodes moved by one.
inline std::vector<WitnessEdge> second_tree(std::size_t nodes) {
  std::vector<WitnessEdge> edges = WitnessTree(nodes).edges();
  for (WitnessEdge& edge : edges) {
    for (std::size_t* const node : {&edge.first, &edge.second}) {
      *node = nodes % 2 == 0 ? nodes - 1 - *node : (*node + 1) % nodes;
    }
  }
  return edges;
}

// Bytes on every link for each byte of the buffer.
using WitnessLoads = std::map<std::string, double>;

// Plays one collective of a group.
class PlayedCollective {
 public:
  PlayedCollective(LinkWitness& links, const plan::RankSet& ranks) : links_(&links) {
    for (std::int64_t k = 0; k < ranks.size(); ++k) ranks_.insert(ranks[k].value);
    for (const std::int64_t rank : ranks_) {
      if (domains_.empty() || domains_.back().front() / links.domain() != rank / links.domain()) {
        domains_.emplace_back();
      }
      domains_.back().push_back(rank);
      rails_ = std::max(rails_, domains_.back().size());
    }
  }

  WitnessLoads play(CollectiveKind kind, std::optional<cost::Algorithm> algorithm) {
    if (!algorithm) plain_ring(ring_share(kind));
    if (algorithm == cost::Algorithm::ring) ring(ring_share(kind));
    if (algorithm == cost::Algorithm::tree) {
      chains();
      trees();
    }
    if (algorithm == cost::Algorithm::in_switch || algorithm == cost::Algorithm::in_switch_tree) {
      switches();
      trees();
    }
    if (algorithm == cost::Algorithm::in_network) {
      switches();
      spine_adds();
    }
    if (algorithm == cost::Algorithm::pairwise) pairs();
    return loads_;
  }

  // Of one message.
  static WitnessLoads message(LinkWitness& links, std::int64_t from, std::int64_t to) {
    PlayedCollective played(links, plan::RankSet(std::vector<Rank>{}));
    played.hop(from, to, 1);
    return played.loads_;
  }

 private:
  using Members = std::vector<std::int64_t>;
  using Direction = WitnessDirection;

  [[nodiscard]] double ring_share(CollectiveKind kind) const {
    const auto n = static_cast<double>(ranks_.size());
    if (kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce) return 1;
    return (kind == CollectiveKind::all_reduce ? 2 : 1) * (n - 1) / n;
  }
  void load(const std::string& link, double share) { loads_[link] += share; }
  void hop_over(std::size_t network, std::int64_t from, std::int64_t to, double share) {
    load(links_->port(network, from, Direction::out), share);
    load(links_->port(network, to, Direction::in), share);
    if (!links_->has_leaves(network)) return;
    if (links_->leaf(network, from) == links_->leaf(network, to)) return;
    load(links_->spine(network, from, Direction::out), share);
    load(links_->spine(network, to, Direction::in), share);
  }
  void hop(std::int64_t from, std::int64_t to, double share) {
    hop_over(links_->network_of(from, to), from, to, share);
  }
  static std::int64_t on_rail(const Members& domain, std::size_t rail) {
    return domain[rail % domain.size()];
  }
  [[nodiscard]] std::size_t outermost() const {
    return links_->network_of(*ranks_.begin(), *ranks_.rbegin());
  }

  void plain_ring(double share) {
    const Members all(ranks_.begin(), ranks_.end());
    for (std::size_t k = 0; k < all.size(); ++k) {
      hop_over(outermost(), all[k], all[(k + 1) % all.size()], share);
    }
  }
  // A chain from each member of a domain through all others.
  template <class Visit>
  void walk(const Members& domain, const Visit& visit) {
    for (std::size_t first = 0; first < domain.size(); ++first) {
      for (std::size_t k = first; k + 1 < first + domain.size(); ++k) {
        visit(on_rail(domain, k), on_rail(domain, k + 1), 1 / static_cast<double>(domain.size()));
      }
    }
  }
  void ring(double share) {
    if (domains_.size() == 1) {
      for (std::size_t k = 0; k < ranks_.size(); ++k) {
        hop(on_rail(domains_[0], k), on_rail(domains_[0], k + 1), share);
      }
      return;
    }
    for (const Members& domain : domains_) {
      walk(domain, [&](auto from, auto to, double part) { hop(from, to, share * part); });
    }
    for (std::size_t rail = 0; rail < rails_; ++rail) {
      for (std::size_t d = 0; d < domains_.size(); ++d) {
        const Members& next = domains_[(d + 1) % domains_.size()];
        hop(on_rail(domains_[d], rail), on_rail(next, rail), share / static_cast<double>(rails_));
      }
    }
  }
  // Sums come up, and results go down.
  void chains() {
    for (const Members& domain : domains_) {
      walk(domain, [&](auto from, auto to, double part) {
        hop(from, to, part);
        hop(to, from, part);
      });
    }
  }
  // Each edge of both trees moves half of the bytes up and half of them down. The mean over all
  // ways to place the domains in the trees has every pair of them as often.
  void trees() {
    const std::size_t count = domains_.size();
    const std::size_t edges = WitnessTree(count).edges().size() + second_tree(count).size();
    const auto pairs = static_cast<double>(count * (count - 1));
    for (std::size_t a = 0; a < count; ++a) {
      for (std::size_t b = 0; b < count; ++b) {
        if (a == b) continue;
        for (std::size_t rail = 0; rail < rails_; ++rail) {
          hop(on_rail(domains_[a], rail), on_rail(domains_[b], rail),
              static_cast<double>(edges) / pairs / static_cast<double>(rails_));
        }
      }
    }
  }
  // Each member owns a piece: the switch reads it from all, adds, and hands the sum to the owner,
  // who sends it for all to get.
  void switches() {
    for (const Members& domain : domains_) {
      if (domain.size() == 1) continue;
      const double piece = 1 / static_cast<double>(domain.size());
      for (const std::int64_t owner : domain) {
        load(links_->port(0, owner, Direction::in), piece);
        load(links_->port(0, owner, Direction::out), piece);
        for (const std::int64_t member : domain) {
          load(links_->port(0, member, Direction::out), piece);
          load(links_->port(0, member, Direction::in), piece);
        }
      }
    }
  }
  void spine_adds() {
    const std::size_t network = outermost();
    const double part = 1 / static_cast<double>(rails_);
    const bool spans = links_->has_leaves(network) && links_->leaf(network, *ranks_.begin()) !=
                                                          links_->leaf(network, *ranks_.rbegin());
    WitnessLoads busiest;
    for (const Members& domain : domains_) {
      WitnessLoads of_domain;
      for (std::size_t rail = 0; rail < rails_; ++rail) {
        for (const Direction direction : {Direction::out, Direction::in}) {
          load(links_->port(network, on_rail(domain, rail), direction), part);
          if (!spans) continue;
          of_domain[links_->spine(network, on_rail(domain, rail), direction)] += part;
        }
      }
      for (const auto& [link, share] : of_domain) busiest[link] = std::max(busiest[link], share);
    }
    for (const auto& [link, share] : busiest) load(link, share);
  }
  void pairs() {
    for (const std::int64_t from : ranks_) {
      for (const std::int64_t to : ranks_) {
        if (from != to) hop(from, to, 1 / static_cast<double>(ranks_.size()));
      }
    }
  }

  LinkWitness* links_;
  std::set<std::int64_t> ranks_;
  std::vector<Members> domains_;
  std::size_t rails_ = 0;
  WitnessLoads loads_;
};

// What a transfer does to the links, in seconds and bytes.
struct WitnessTransfer {
  double latency = 0;
  double seconds = 0;  // alone, after the latency
  WitnessLoads loads;  // bytes; where links are slower than the cost model, what they can carry
  std::vector<double> most;  // the loads of the links that it loads most, relative to the capacity
};

// `loads` is for each byte of the buffer.
inline WitnessTransfer witness_transfer(const LinkWitness& links, WitnessLoads loads, Bytes bytes,
                                        Seconds latency, Seconds all) {
  WitnessTransfer transfer{.latency = latency.value, .seconds = (all - latency).value};
  double most = 0;
  const auto seconds_of = [&](const auto& link) {
    return link.second / links.capacities().at(link.first);
  };
  for (auto& link : loads) {
    link.second *= static_cast<double>(bytes.count);
    link.second = std::min(link.second, links.capacities().at(link.first) * transfer.seconds);
    most = std::max(most, seconds_of(link));
  }
  for (const auto& link : loads) {
    if (seconds_of(link) >= most * (1 - 1e-9)) transfer.most.push_back(link.second);
  }
  transfer.loads = std::move(loads);
  return transfer;
}

inline WitnessTransfer witness_message(LinkWitness& links, Bytes bytes, Rank from, Rank to) {
  return witness_transfer(links, PlayedCollective::message(links, from.value, to.value), bytes,
                          cost::message_time(links.system(), {}, from, to),
                          cost::message_time(links.system(), bytes, from, to));
}

inline WitnessTransfer witness_collective(LinkWitness& links, CollectiveKind kind, Bytes whole,
                                          const plan::RankSet& ranks) {
  const cost::RankSpan span = cost::rank_span(ranks, links.system());
  std::optional<cost::Algorithm> algorithm;
  if (cost::has_collective_rates(links.system())) {
    algorithm = cost::estimate_collective(links.system(), kind, whole, span)
                    .value_or(cost::CollectiveEstimate{})
                    .algorithm;
  }
  return witness_transfer(links, PlayedCollective(links, ranks).play(kind, algorithm), whole,
                          cost::collective_time(links.system(), kind, {}, span),
                          cost::collective_time(links.system(), kind, whole, span));
}

}  // namespace shiplap::sim
