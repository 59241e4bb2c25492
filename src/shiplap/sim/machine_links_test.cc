// The load of every link by MachineLinks, against link_witness_testing_internal.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/sim/link_witness_testing_internal.h"
#include "shiplap/sim/machine_links_internal.h"
#include "shiplap/sim/random_machine_testing_internal.h"

namespace shiplap::sim {
namespace {

// ---- the witness's own trees, against NCCL's pictures and the properties that make them a pair

using Parents = std::map<std::size_t, std::size_t>;  // by child

Parents parents_of(const std::vector<WitnessEdge>& edges) {
  Parents parents;
  for (const auto& [parent, child] : edges) {
    EXPECT_TRUE(parents.emplace(child, parent).second) << child << " has two parents";
  }
  return parents;
}

// The edges up to the root, or more than there are nodes if there is a cycle.
std::size_t depth_of(const Parents& parents, std::size_t node) {
  std::size_t depth = 0;
  for (auto at = parents.find(node); at != parents.end() && depth <= parents.size() + 1;
       at = parents.find(at->second)) {
    ++depth;
  }
  return depth;
}

TEST(WitnessTrees, AreThoseOfNcclsPictures) {
  EXPECT_EQ(parents_of(WitnessTree(14).edges()), (Parents{{8, 0},
                                                          {4, 8},
                                                          {12, 8},
                                                          {2, 4},
                                                          {6, 4},
                                                          {10, 12},
                                                          {13, 12},
                                                          {1, 2},
                                                          {3, 2},
                                                          {5, 6},
                                                          {7, 6},
                                                          {9, 10},
                                                          {11, 10}}));
  EXPECT_EQ(parents_of(second_tree(12)), (Parents{{3, 11},
                                                  {7, 3},
                                                  {1, 3},
                                                  {5, 7},
                                                  {9, 7},
                                                  {0, 1},
                                                  {2, 1},
                                                  {4, 5},
                                                  {6, 5},
                                                  {8, 9},
                                                  {10, 9}}));
  EXPECT_EQ(parents_of(second_tree(13)), (Parents{{9, 1},
                                                  {5, 9},
                                                  {0, 9},
                                                  {3, 5},
                                                  {7, 5},
                                                  {11, 0},
                                                  {2, 3},
                                                  {4, 3},
                                                  {6, 7},
                                                  {8, 7},
                                                  {10, 11},
                                                  {12, 11}}));
}

// What NCCL computes with bits (ncclGetBtree).
std::size_t parent_by_bits(std::size_t node, std::size_t nodes) {
  const std::size_t bit = node & (~node + 1);
  const std::size_t up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}

TEST(WitnessTrees, SpanAllNodesAndNoNodeIsInnerInBoth) {
  for (std::size_t nodes = 1; nodes <= 130; ++nodes) {
    SCOPED_TRACE(nodes);
    std::map<std::size_t, int> inner;
    for (const auto& edges : {WitnessTree(nodes).edges(), second_tree(nodes)}) {
      const Parents parents = parents_of(edges);
      ASSERT_EQ(parents.size(), nodes - 1);
      std::set<std::size_t> here;
      for (const auto& [child, parent] : parents) {
        EXPECT_LT(child, nodes);
        EXPECT_LE(depth_of(parents, child), std::bit_width(nodes - 1));
        here.insert(parent);
      }
      for (const std::size_t node : here) ++inner[node];
    }
    for (const auto& [parent, child] : WitnessTree(nodes).edges()) {
      EXPECT_EQ(parent, parent_by_bits(child, nodes));
    }
    for (const auto& [node, trees] : inner) {
      // Of an odd number, the root of the first tree is the moved last node of the second.
      EXPECT_TRUE(trees == 1 || (nodes % 2 == 1 && node == 0)) << node;
    }
  }
}

// ---- which link is which

// The links of MachineLinks by the witness's names: for each rank and network its port, then that
// of its leaf, if the network has leaves. The link into it has the next number.
class LinkNames {
 public:
  LinkNames(const MachineLinks& links, LinkWitness& witness) {
    for (std::int64_t rank = 0; rank < links.ranks(); ++rank) {
      const std::vector<std::int32_t> numbers = links.links_of(rank);
      std::size_t next = 0;
      const auto take = [&](const std::string& out, const std::string& in) {
        ASSERT_LT(next, numbers.size());
        add(out, numbers[next]);
        add(in, numbers[next] + 1);
        ++next;
      };
      for (std::size_t network = 0; network < witness.system().networks.size(); ++network) {
        take(witness.port(network, rank, WitnessDirection::out),
             witness.port(network, rank, WitnessDirection::in));
        if (!witness.has_leaves(network)) continue;
        take(witness.spine(network, rank, WitnessDirection::out),
             witness.spine(network, rank, WitnessDirection::in));
      }
      EXPECT_EQ(next, numbers.size());
    }
    for (const auto& [name, number] : numbers_) {
      EXPECT_NEAR(links.capacities().at(number) / witness.capacities().at(name), 1, 1e-12) << name;
    }
  }
  [[nodiscard]] const std::string& name(std::int32_t number) const { return names_.at(number); }

 private:
  void add(const std::string& name, std::int32_t number) {
    EXPECT_EQ(numbers_.emplace(name, number).first->second, number) << name << " has two numbers";
    EXPECT_EQ(names_.emplace(number, name).first->second, name) << number << " is two links";
  }
  std::map<std::string, std::int32_t> numbers_;
  std::map<std::int32_t, std::string> names_;
};

// ---- the same transfers

// How often something was compared, by what it was.
using Tally = std::map<std::string, int>;

// A rounding error of the difference of two times, relative to the difference.
bool is_close(double a, double b, double scale = 0) {
  return std::abs(a - b) <= 1e-9 * std::max({std::abs(a), std::abs(b), scale});
}

void compare(const Transfer& transfer, const WitnessTransfer& witness, const LinkNames& names,
             Tally& tally) {
  EXPECT_TRUE(is_close(transfer.size.latency, witness.latency));
  const double seconds = transfer.size.rate == 0 ? 0 : transfer.size.bytes / transfer.size.rate;
  EXPECT_TRUE(is_close(seconds, witness.seconds, 1e-6 * witness.latency))
      << seconds << " and not " << witness.seconds;
  if (witness.seconds <= 1e-6 * witness.latency) return;
  EXPECT_TRUE(std::ranges::any_of(witness.most,
                                  [&](double load) { return is_close(transfer.size.bytes, load); }))
      << transfer.size.bytes << " and not " << testing::PrintToString(witness.most);
  WitnessLoads loads;
  for (const LinkUse& use : transfer.uses) {
    EXPECT_TRUE(loads.emplace(names.name(use.link), use.share * transfer.size.bytes).second);
  }
  for (const auto& [link, load] : witness.loads) {
    EXPECT_TRUE(is_close(loads[link], load)) << link << ": " << loads[link] << " and not " << load;
    ++tally[link.find("leaf") == std::string::npos ? "port" : "spine"];
  }
  for (const auto& [link, load] : loads) {
    EXPECT_TRUE(load == 0 || witness.loads.contains(link)) << link << ": " << load << " and not 0";
  }
  ++tally["transfers"];
}

// Of any ranks or, as often as not, of those of one domain.
std::vector<Rank> random_group(Random& random, std::int64_t ranks, std::int64_t domain) {
  std::vector<Rank> group;
  const double density = random.chance() ? 1 : random.unit();
  const std::int64_t first = random.chance() ? 0 : random.between(0, ranks / domain) * domain;
  const std::int64_t end = first == 0 ? ranks : first + domain;
  for (std::int64_t rank = first; rank < end; ++rank) {
    if (random.chance(density)) group.emplace_back(static_cast<std::int32_t>(rank));
  }
  if (random.chance()) random.shuffle(group);
  return group;
}

Bytes random_size(Random& random) {
  return {random.between(1, (std::int64_t{1} << random.between(4, 34)) + 1)};
}

std::string to_text(const hardware::System& system, const std::vector<Rank>& group) {
  std::string text = "networks";
  for (const hardware::Network& network : system.networks) {
    text += " " + std::to_string(network.size);
    if (network.leaf) text += " (leaf " + std::to_string(network.leaf->nodes) + ")";
  }
  if (system.node) {
    text += ", node " + std::to_string(system.node->devices) + " devices " +
            std::to_string(system.node->adapters) + " adapters";
  }
  text += ", group";
  for (const Rank rank : group) text += " " + std::to_string(rank.value);
  return text;
}

// One message and one collective of random groups.
void compare_transfers(Random& random, const MachineLinks& links, LinkWitness& witness,
                       Tally& tally) {
  const hardware::System& system = witness.system();
  const LinkNames names(links, witness);
  for (int k = 0; k < 10; ++k) {
    const std::vector<Rank> group = random_group(random, links.ranks(), witness.domain());
    if (group.size() < 2) continue;
    SCOPED_TRACE(to_text(system, group));
    const Bytes bytes = random_size(random);
    compare(links.message(bytes, group[0], group[1]),
            witness_message(witness, bytes, group[0], group[1]), names, tally);
    const CollectiveKind kind = random.chance()
                                    ? CollectiveKind::all_reduce
                                    : kCollectives[random.between(0, kCollectives.size())];
    const plan::RankSet ranks(group);
    const cost::RankSpan span = cost::rank_span(ranks, system);
    const auto how = cost::has_collective_rates(system)
                         ? cost::estimate_collective(system, kind, bytes, span)
                         : std::nullopt;
    const std::string algorithm(how ? to_string(how->algorithm) : "plain ring");
    SCOPED_TRACE(std::string(name(kind)) + " by " + algorithm);
    const int before = tally["transfers"];
    compare(links.collective(kind, bytes, ranks, span),
            witness_collective(witness, kind, bytes, ranks), names, tally);
    tally[algorithm] += tally["transfers"] - before;
  }
}

TEST(MachineLinks, LoadsEachLinkAsPlayed) {
  constexpr std::uint64_t kMachines = 200;
  Tally tally;
  for (std::uint64_t seed = 1; seed <= kMachines && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const hardware::System system = RandomMachine(random).system();
    LinkWitness witness(system);
    const std::int64_t ranks = std::max<std::int64_t>(2, random.between(witness.domain(), 41));
    compare_transfers(random, MachineLinks(system, ranks), witness, tally);
  }
  for (const std::string what : {"port", "spine", "ring", "tree", "NVLS", "NVLSTree", "NVLS+SHARP",
                                 "pairwise", "plain ring"}) {
    EXPECT_GT(tally[what], 5) << what;
    RecordProperty(what, tally[what]);
  }
}

}  // namespace
}  // namespace shiplap::sim
