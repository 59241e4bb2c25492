// The structure is that of NCCL's tuner (src/graph/tuning.cc at 5067397c): every pair of algorithm
// and protocol has a latency, a constant plus the steps of its longest path, and a bandwidth, and
// the fastest pair is taken. Its latencies are constants here. What differs: rates are fitted to
// measurements instead of tabled, and Network::ramp is in the place of the tuner's correction
// factors, since those jump with the size, and a time has to grow with it.
#include "shiplap/cost/collective.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::cost {
namespace {

using hardware::CollectiveRates;
using hardware::Network;
using hardware::System;

constexpr double kMicro = 1e-6;
constexpr std::array kProtocols{Protocol::ll, Protocol::ll128, Protocol::simple};

// By protocol, in microseconds: starting a collective, and a step over NVLink and over the network.
// Constants of NCCL's tuner; data/published/machines.csv has them with their source.
struct Latencies {
  std::array<double, 3> base;
  std::array<double, 3> link;
  std::array<double, 3> net;
};
constexpr Latencies kRing{
    .base = {6.6, 14.0, 8.4}, .link = {0.6, 1.9, 3.4}, .net = {2.7, 4.0, 14.0}};
constexpr Latencies kTree{
    .base = {6.8, 14.0, 8.4}, .link = {0.6, 1.25, 4.0}, .net = {5.0, 8.5, 14.0}};
constexpr double kInSwitchBase = 25.0;
constexpr double kInNetworkBase = 18.0;
constexpr double kInSwitchTreeHop = 20.9;
// A message to one more peer, as a part of a step.
constexpr double kPeer = 0.25;
// With four devices or fewer, NCCL was measured to use rings (docs/accuracy.md).
constexpr std::int64_t kMinInSwitchRanks = 5;

// LL has 4 bytes of flags in 8, LL128 has 8 in 128.
constexpr std::array kPayload{0.5, 0.9375, 1.0};

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

const CollectiveRates& rates_of(const Network& network) {
  if (!network.collectives) throw InternalError("a network has no rates of collectives");
  return *network.collectives;
}

// A collective of `ranks` on `domains` of the inner network with up to `per_domain` ranks, each of
// which uses its own rail of the outer network.
class Estimator {
 public:
  Estimator(const System& system, CollectiveKind kind, double bytes, const RankSpan& span,
            const CollectiveChoice& choice)
      : inner_(system.networks.front()),
        outer_(network_for(system, span)),
        kind_(kind),
        bytes_(bytes),
        ranks_(span.ranks),
        choice_(choice) {
    const std::int64_t size = inner_.size;
    const std::int64_t first = span.lowest / size;
    const std::int64_t last = span.highest / size;
    domains_ = span.domains;
    per_domain_ = span.per_domain;
    if (domains_ == 0) {
      const std::int64_t stride =
          std::max<std::int64_t>(1, (span.highest - span.lowest) / (ranks_ - 1));
      domains_ = std::min(ranks_, last - first + 1);
      per_domain_ = std::min(ranks_ - domains_ + 1, divide_up(size, stride));
    }
    crosses_leaves(system, first, last);
    per_node_ = std::min(per_domain_, system.node ? system.node->devices : size);
    nodes_per_domain_ = divide_up(per_domain_, per_node_);
    in_rate_ = inner_.bandwidth.bytes_per_second * inner_.efficiency;
    out_rate_ =
        static_cast<double>(per_domain_) * outer_.bandwidth.bytes_per_second * outer_.efficiency;
  }

  std::optional<CollectiveEstimate> best() {
    switch (kind_) {
      case CollectiveKind::all_reduce:
        rings(2 * (n() - 1) / n() * bytes_, 2);
        trees();
        in_switch();
        break;
      case CollectiveKind::all_gather:
      case CollectiveKind::reduce_scatter:
        rings((n() - 1) / n() * bytes_, 1);
        break;
      case CollectiveKind::broadcast:
      case CollectiveKind::reduce:
        rings(bytes_, 1);
        break;
      case CollectiveKind::barrier:
        bytes_ = 0;
        rings(0, 2);
        trees();
        break;
      case CollectiveKind::all_to_all:
        pairwise();
        break;
    }
    return best_;
  }

 private:
  [[nodiscard]] double n() const { return static_cast<double>(ranks_); }
  [[nodiscard]] bool one_domain() const { return domains_ == 1; }
  [[nodiscard]] const CollectiveRates& in() const { return rates_of(inner_); }
  [[nodiscard]] const CollectiveRates& out() const { return rates_of(outer_); }

  // A ring crosses from leaf to leaf once per rail, so a leaf of k nodes hides an oversubscription
  // of k. Everything else sends a part of its traffic through the spine.
  void crosses_leaves(const System& system, std::int64_t first, std::int64_t last) {
    if (!outer_.leaf || one_domain()) return;
    const std::int64_t domains = ranks_per_leaf(system, *outer_.leaf) / inner_.size;
    if (first / domains == last / domains) return;
    const double oversubscription = outer_.leaf->oversubscription;
    const double within =
        std::min(1.0, static_cast<double>(domains) / static_cast<double>(domains_));
    spine_ = oversubscription;
    all_pairs_ = within + (1 - within) * oversubscription;
    const std::int64_t nodes = std::min(domains, outer_.leaf->nodes);
    ring_spine_ = std::max(1.0, oversubscription / static_cast<double>(nodes));
  }

  void consider(Algorithm algorithm, Protocol protocol, double seconds) {
    if (choice_.algorithm && *choice_.algorithm != algorithm) return;
    if (choice_.protocol && *choice_.protocol != protocol) return;
    if (best_ && best_->time.value <= seconds) return;
    best_ = {.time = {seconds}, .algorithm = algorithm, .protocol = protocol};
  }

  static double payload(Protocol protocol) { return kPayload[static_cast<std::size_t>(protocol)]; }
  [[nodiscard]] double out_share(Protocol protocol) const {
    const std::array shares{out().ll, out().ll128, 1.0};
    return shares[static_cast<std::size_t>(protocol)];
  }

  // The steps along the longest path. NCCL counts one from node to node as one of the network, also
  // if both nodes are in one NVLink domain.
  struct Steps {
    double within_node = 0;
    double between_nodes = 0;  // of a domain
    double between_domains = 0;
  };
  [[nodiscard]] double latency(const Latencies& of, Protocol protocol, const Steps& steps) const {
    const auto p = static_cast<std::size_t>(protocol);
    const double inside = in().latency * (of.base[p] + steps.within_node * of.link[p]);
    const double across = one_domain() ? 0 : out().latency * steps.between_domains;
    return kMicro * (inside + (steps.between_nodes + across) * of.net[p]);
  }
  [[nodiscard]] double ramp(Protocol protocol, double bytes) const {
    if (protocol != Protocol::simple) return 0;
    return (in().ramp + (one_domain() ? 0 : out().ramp)) * std::sqrt(bytes);
  }

  // `moved` bytes cross each link of the ring in `turns` turns of one step less than there are
  // ranks.
  void rings(double moved, std::int64_t turns) {
    const std::int64_t domains = one_domain() ? 0 : domains_;
    const std::int64_t nodes = nodes_per_domain_ == 1 ? 0 : domains_ * (nodes_per_domain_ - 1);
    const std::int64_t crossings = std::min(ranks_ - 1, nodes + domains);
    const auto steps = [&](std::int64_t in_turn) { return static_cast<double>(turns * in_turn); };
    const Steps path{.within_node = steps(ranks_ - 1 - crossings),
                     .between_nodes = steps(std::min(crossings, nodes)),
                     .between_domains = steps(crossings - std::min(crossings, nodes))};
    for (const Protocol protocol : kProtocols) {
      double rate = per_domain_ > 1 ? in_rate_ * payload(protocol) : 0;
      if (!one_domain()) {
        const double out_rate = out_rate_ * out_share(protocol) / ring_spine_;
        rate = per_domain_ > 1 ? std::min(rate, out_rate) : out_rate;
      }
      consider(Algorithm::ring, protocol,
               latency(kRing, protocol, path) + moved / rate + ramp(protocol, moved));
    }
  }

  // What a domain receives. In a double binary tree that is half of the buffer from two children
  // and from the parent in one tree, and from the parent in the other: twice the buffer. Of two
  // domains each is the root of one tree, and receives the buffer once.
  [[nodiscard]] double tree_bytes() const { return domains_ == 2 ? bytes_ : 2 * bytes_; }
  static double depth(std::int64_t leaves) {
    return static_cast<double>(std::bit_width(static_cast<std::uint64_t>(leaves)) - 1);
  }

  // A chain within a node, in which each rank receives the buffer on the way up and on the way
  // down, and a double binary tree of the nodes.
  void trees() {
    const Steps path{.within_node = 2 * static_cast<double>(per_node_ - 1),
                     .between_nodes = 2 * depth(nodes_per_domain_),
                     .between_domains = 2 * depth(domains_)};
    for (const Protocol protocol : kProtocols) {
      double transfer = per_domain_ > 1 ? 2 * bytes_ / (in_rate_ * payload(protocol)) : 0;
      if (!one_domain()) {
        const double rate = out_rate_ * out_share(protocol) / spine_;
        transfer = std::max(transfer, tree_bytes() / rate);
      }
      consider(Algorithm::tree, protocol,
               latency(kTree, protocol, path) + transfer + ramp(protocol, bytes_));
    }
  }

  void in_switch() {
    if (!in().in_switch || per_domain_ < kMinInSwitchRanks) return;
    const CollectiveRates::InSwitch& inside = *in().in_switch;
    const double root = std::sqrt(bytes_);
    const double transfer = bytes_ / (inner_.bandwidth.bytes_per_second * inside.share);
    const double rest = kMicro * in().latency * kInSwitchBase + inside.ramp * root;
    if (one_domain()) {
      consider(Algorithm::in_switch, Protocol::simple, rest + transfer);
      return;
    }
    const double hops = kMicro * out().latency * 2 * depth(domains_) * kInSwitchTreeHop;
    consider(
        Algorithm::in_switch_tree, Protocol::simple,
        rest + out().ramp * root + hops + std::max(transfer, tree_bytes() * spine_ / out_rate_));
    if (!out().in_switch) return;
    const CollectiveRates::InSwitch& outside = *out().in_switch;
    const double rate =
        static_cast<double>(per_domain_) * outer_.bandwidth.bytes_per_second * outside.share;
    consider(Algorithm::in_network, Protocol::simple,
             rest + kMicro * out().latency * kInNetworkBase + outside.ramp * root +
                 std::max(transfer, bytes_ / rate));
  }

  // Every rank sends to all others; messages within domains overlap those between them.
  void pairwise() {
    const double inside = static_cast<double>(per_domain_ - 1) / n() * bytes_;
    const double outside = static_cast<double>(ranks_ - per_domain_) / n() * bytes_;
    const double out_rate = outer_.bandwidth.bytes_per_second * outer_.efficiency / all_pairs_;
    const double transfer =
        one_domain() ? inside / in_rate_ : std::max(inside / in_rate_, outside / out_rate);
    consider(Algorithm::pairwise, Protocol::simple,
             latency(kRing, Protocol::ll,
                     {.within_node = kPeer * static_cast<double>(per_domain_ - 1),
                      .between_domains = 1 + kPeer * static_cast<double>(ranks_ - per_domain_)}) +
                 transfer + ramp(Protocol::simple, inside + outside));
  }

  const Network& inner_;
  const Network& outer_;
  CollectiveKind kind_;
  double bytes_;
  std::int64_t ranks_;
  CollectiveChoice choice_;
  std::int64_t domains_ = 1;
  std::int64_t per_domain_ = 1;
  std::int64_t per_node_ = 1;
  std::int64_t nodes_per_domain_ = 1;  // that the group has ranks on
  // By how much an oversubscribed spine divides the rate of trees, of all-to-all, of rings.
  double spine_ = 1;
  double all_pairs_ = 1;
  double ring_spine_ = 1;
  double in_rate_ = 0;   // bytes per second of a ring in a domain
  double out_rate_ = 0;  // ... between domains, over the rails of the group
  std::optional<CollectiveEstimate> best_;
};

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 6> kNames{"ring",     "tree",       "NVLS",
                                                          "NVLSTree", "NVLS+SHARP", "pairwise"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string_view to_string(Protocol protocol) {
  static constexpr std::array<std::string_view, 3> kNames{"LL", "LL128", "Simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

RankSpan rank_span(const plan::RankSet& ranks) {
  ensure(ranks.size() > 0, "a group has a rank");
  RankSpan span{.ranks = ranks.size(), .lowest = ranks[0].value, .highest = ranks[0].value};
  for (std::int64_t k = 1; k < ranks.size(); ++k) {
    const std::int64_t rank = ranks[k].value;
    span.lowest = std::min(span.lowest, rank);
    span.highest = std::max(span.highest, rank);
  }
  return span;
}

RankSpan rank_span(const plan::RankSet& ranks, const System& system, std::int64_t shift) {
  RankSpan span = rank_span(ranks);
  span.lowest += shift;
  span.highest += shift;
  std::vector<std::int64_t> domains(ranks.size());
  for (std::int64_t k = 0; k < ranks.size(); ++k) {
    domains[k] = (ranks[k].value + shift) / system.networks.front().size;
  }
  if (!std::ranges::is_sorted(domains)) std::ranges::sort(domains);
  std::int64_t here = 0;
  for (std::size_t k = 0; k < domains.size(); ++k) {
    here = k > 0 && domains[k] == domains[k - 1] ? here + 1 : 1;
    span.domains += here == 1 ? 1 : 0;
    span.per_domain = std::max(span.per_domain, here);
  }
  return span;
}

std::int64_t ranks_per_leaf(const System& system, const hardware::Leaf& leaf) {
  const std::int64_t domain = system.networks.front().size;
  constexpr std::int64_t kMaxDevices = std::int64_t{1} << 30;
  const std::int64_t node = std::min(kMaxDevices, system.node ? system.node->devices : domain);
  return std::max<std::int64_t>(1, leaf.nodes * node / domain) * domain;
}

bool is_same_placement(const System& system, const RankSpan& a, const RankSpan& b) {
  const Network& network = network_for(system, a);
  if (&network != &network_for(system, b) || a.ranks != b.ranks || a.domains != b.domains ||
      a.per_domain != b.per_domain) {
    return false;
  }
  // The rest decides on leaves, and on domains if they are not counted.
  if (!network.leaf && a.domains != 0) return true;
  const std::int64_t size = system.networks.front().size;
  const std::int64_t per_leaf = network.leaf ? ranks_per_leaf(system, *network.leaf) : size;
  const auto leaf = [&](std::int64_t rank) { return rank / per_leaf; };
  if ((leaf(a.lowest) == leaf(a.highest)) != (leaf(b.lowest) == leaf(b.highest))) return false;
  return a.domains != 0 ||
         (a.highest - a.lowest == b.highest - b.lowest &&
          a.highest / size - a.lowest / size == b.highest / size - b.lowest / size);
}

const Network& network_for(const System& system, const RankSpan& span) {
  ensure(!system.networks.empty(), "a system has a network");
  for (const Network& network : system.networks) {
    if (span.lowest / network.size == span.highest / network.size) return network;
  }
  return system.networks.back();
}

bool has_collective_rates(const System& system) {
  return system.networks.front().collectives.has_value();
}

std::optional<CollectiveEstimate> estimate_collective(const System& system, CollectiveKind kind,
                                                      Bytes whole, const RankSpan& span,
                                                      const CollectiveChoice& choice) {
  return Estimator(system, kind, static_cast<double>(whole.count), span, choice).best();
}

Seconds estimate_message(const System& system, const Network& network, Bytes bytes) {
  const CollectiveRates& rates = rates_of(network);
  const CollectiveRates& inner = rates_of(system.networks.front());
  const bool inside = &network == &system.networks.front();
  const double hop = inside ? rates.latency * kRing.link[0] : rates.latency * kRing.net[0];
  const double size = static_cast<double>(bytes.count);
  double transfer = size * network.p2p.scalar * (1 + network.p2p.offset / 2) /
                    (network.bandwidth.bytes_per_second * network.efficiency);
  if (rates.one_peer) {
    const auto few = static_cast<double>(std::min(bytes, rates.one_peer->bytes).count);
    transfer = std::max(transfer, few / rates.one_peer->bandwidth.bytes_per_second);
  }
  return {kMicro * (inner.latency * kRing.base[0] + hop) + transfer};
}

}  // namespace shiplap::cost
