#include "shiplap/cost/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::cost {
namespace {

using hardware::System;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::array kTimed{CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                            CollectiveKind::reduce_scatter, CollectiveKind::all_to_all,
                            CollectiveKind::broadcast,      CollectiveKind::reduce};

RankSpan first_ranks(std::int64_t ranks) {
  return {.ranks = ranks, .lowest = 0, .highest = ranks - 1};
}

CollectiveEstimate estimate(const System& system, CollectiveKind kind, std::int64_t bytes,
                            const RankSpan& span, const CollectiveChoice& choice = {}) {
  const auto found = estimate_collective(system, kind, {bytes}, span, choice);
  if (!found) throw InternalError("the test asks for an algorithm that there is");
  return *found;
}

// nccl-tests' bus bandwidth of an all-reduce, in GB/s.
double bus_bandwidth(const System& system, std::int64_t bytes, const RankSpan& span,
                     const CollectiveChoice& choice = {}) {
  const double n = static_cast<double>(span.ranks);
  const double seconds =
      estimate(system, CollectiveKind::all_reduce, bytes, span, choice).time.value;
  return static_cast<double>(bytes) * 2 * (n - 1) / n / seconds / 1e9;
}

// Within 10 % of what is published of one node (NVIDIA/nccl-tests, data/published) and of 8 rails.
TEST(EstimateCollective, ReachesThePublishedBandwidthsOfAnH100) {
  const System h100 = hardware::find_system("h100_80g_nvl8");
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, first_ranks(8)), 480, 48);
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, first_ranks(8), {.algorithm = Algorithm::ring}), 367,
              37);
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, first_ranks(16)), 467, 47);
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, first_ranks(32)), 366, 37);
}

TEST(EstimateCollective, ChoosesAsNcclDoes) {
  const System h100 = hardware::find_system("h100_80g_nvl8");
  const auto chosen = [&](std::int64_t bytes, std::int64_t ranks) {
    return estimate(h100, CollectiveKind::all_reduce, bytes, first_ranks(ranks));
  };
  EXPECT_EQ(chosen(1024, 8).protocol, Protocol::ll);
  EXPECT_EQ(chosen(kGiB, 8).algorithm, Algorithm::in_switch);
  EXPECT_EQ(chosen(kGiB, 4).algorithm, Algorithm::ring);  // NVLS is for more devices
  EXPECT_EQ(chosen(1024, 32).algorithm, Algorithm::tree);
  EXPECT_EQ(chosen(kGiB, 16).algorithm, Algorithm::in_switch_tree);
  EXPECT_EQ(chosen(16 * kGiB, 1024).protocol, Protocol::simple);
  const System a100 = hardware::find_system("a100_80g");
  EXPECT_EQ(estimate(a100, CollectiveKind::all_reduce, kGiB, first_ranks(8)).algorithm,
            Algorithm::ring);
  EXPECT_EQ(estimate(h100, CollectiveKind::all_to_all, kGiB, first_ranks(64)).algorithm,
            Algorithm::pairwise);
}

TEST(EstimateCollective, IsTheFastestOfThoseThatAreAllowed) {
  for (const std::string& name : hardware::known_systems()) {
    const System system = hardware::find_system(name);
    for (const std::int64_t ranks : {2, 4, 8, 16, 64, 256}) {
      for (std::int64_t bytes = 8; bytes <= 4 * kGiB; bytes *= 64) {
        double fastest = 1e300;
        int found = 0;
        for (int a = 0; a <= static_cast<int>(Algorithm::pairwise); ++a) {
          for (int p = 0; p <= static_cast<int>(Protocol::simple); ++p) {
            const CollectiveChoice choice{.algorithm = static_cast<Algorithm>(a),
                                          .protocol = static_cast<Protocol>(p)};
            const auto one = estimate_collective(system, CollectiveKind::all_reduce, {bytes},
                                                 first_ranks(ranks), choice);
            if (!one) continue;
            ++found;
            EXPECT_EQ(one->algorithm, choice.algorithm);
            EXPECT_EQ(one->protocol, choice.protocol);
            fastest = std::min(fastest, one->time.value);
          }
        }
        EXPECT_GE(found, 6);
        EXPECT_EQ(
            estimate(system, CollectiveKind::all_reduce, bytes, first_ranks(ranks)).time.value,
            fastest);
      }
    }
  }
}

TEST(EstimateCollective, GrowsWithTheSize) {
  constexpr std::uint64_t kSeed = 33;
  Random random(kSeed);
  for (const std::string& name : hardware::known_systems()) {
    const System system = hardware::find_system(name);
    for (const CollectiveKind kind : kTimed) {
      const RankSpan span = first_ranks(random.between(2, 4096));
      std::vector<std::int64_t> sizes(10'000);
      for (std::int64_t& size : sizes) {
        size = static_cast<std::int64_t>(std::exp2(40 * random.unit()));
      }
      std::ranges::sort(sizes);
      double before = 0;
      for (const std::int64_t size : sizes) {
        const double time = estimate(system, kind, size, span).time.value;
        ASSERT_LE(before, time) << name << " " << shiplap::name(kind) << " of " << span.ranks
                                << " at " << size << ", seed " << kSeed;
        before = time;
      }
    }
  }
}

// One byte more takes no jump: the time is a continuous function of the size.
TEST(EstimateCollective, DoesNotJump) {
  constexpr std::uint64_t kSeed = 34;
  Random random(kSeed);
  for (const std::string& name : hardware::known_systems()) {
    const System system = hardware::find_system(name);
    for (int i = 0; i < 10'000; ++i) {
      const auto size = static_cast<std::int64_t>(std::exp2(10 + 30 * random.unit()));
      const RankSpan span = first_ranks(random.between(2, 1024));
      const CollectiveKind kind = kTimed[static_cast<std::size_t>(random.between(0, 5))];
      const double time = estimate(system, kind, size, span).time.value;
      const double next = estimate(system, kind, size + 1, span).time.value;
      ASSERT_LE(next, time * (1 + 1e-4)) << name << " seed " << kSeed;
    }
  }
}

// A group with one rank per node has one rail, one with all ranks of its nodes has all.
TEST(EstimateCollective, UsesTheRailsOfItsRanks) {
  System h100 = hardware::find_system("h100_80g_nvl8");
  h100.networks[0].bandwidth.bytes_per_second *= 2;  // so that the rails limit all groups
  const RankSpan one_rail{.ranks = 8, .lowest = 3, .highest = 3 + 7 * 8};
  const RankSpan two_rails{.ranks = 16, .lowest = 0, .highest = 60};
  const double one = bus_bandwidth(h100, 16 * kGiB, one_rail);
  EXPECT_NEAR(one, 50 * h100.networks[1].efficiency, 1);
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, two_rails), 2 * one, 2);
  EXPECT_NEAR(bus_bandwidth(h100, 16 * kGiB, first_ranks(64), {.algorithm = Algorithm::ring}),
              8 * one, 20);
}

// Counts domains directly.
TEST(RankSpan, CountsTheDomainsOfAnyAscendingRanks) {
  System system = hardware::zero_cost_system();
  for (const std::int64_t size : {1, 2, 3, 4, 8}) {
    system.networks.front().size = size;
    for (unsigned members = 1; members < 1U << 9U; ++members) {
      std::vector<Rank> ranks;
      std::array<std::int64_t, 9> in_domain{};
      for (std::int32_t rank = 0; rank < 9; ++rank) {
        if ((members >> static_cast<unsigned>(rank) & 1U) == 0) continue;
        ranks.emplace_back(rank);
        ++in_domain[static_cast<std::size_t>(rank / size)];
      }
      const RankSpan span = rank_span(plan::RankSet(ranks), system);
      EXPECT_EQ(span.domains, 9 - std::ranges::count(in_domain, 0));
      EXPECT_EQ(span.per_domain, std::ranges::max(in_domain));
    }
  }
}

// What even spacing assumes is what counting finds.
TEST(RankSpan, OfEvenlySpacedRanksNeedsNoCount) {
  const System h100 = hardware::find_system("h100_80g_nvl8");
  for (const std::int64_t stride : {1, 2, 4, 8, 16}) {
    for (const std::int64_t count : {2, 4, 8, 32}) {
      const plan::RankSet ranks(Rank(0), {{.count = count, .stride = stride}});
      for (const CollectiveKind kind : kTimed) {
        EXPECT_EQ(estimate(h100, kind, 1 << 24, rank_span(ranks)).time.value,
                  estimate(h100, kind, 1 << 24, rank_span(ranks, h100)).time.value)
            << stride << " " << count;
      }
    }
  }
}

// Groups of a mesh with a gap: ranks 0-3 of each of two nodes.
TEST(EstimateCollective, CountsTheRanksOfANode) {
  const System h100 = hardware::find_system("h100_80g_nvl8");
  const plan::RankSet ranks(Rank(0), {{.count = 2, .stride = 8}, {.count = 4, .stride = 1}});
  const RankSpan span = rank_span(ranks, h100);
  EXPECT_EQ(span.domains, 2);
  EXPECT_EQ(span.per_domain, 4);
}

TEST(EstimateCollective, PaysForAnOversubscribedSpine) {
  System h100 = hardware::find_system("h100_80g_nvl8");
  const auto time = [&](CollectiveKind kind, std::int64_t ranks) {
    return estimate(h100, kind, kGiB, first_ranks(ranks)).time.value;
  };
  const double near = time(CollectiveKind::all_to_all, 256);
  const double far = time(CollectiveKind::all_to_all, 512);
  const double ring = time(CollectiveKind::all_gather, 512);
  h100.networks[1].leaf.emplace(h100.networks[1].leaf.value_or(hardware::Leaf{})).oversubscription =
      3;
  EXPECT_EQ(time(CollectiveKind::all_to_all, 256), near);  // 32 nodes: one leaf
  EXPECT_NEAR(time(CollectiveKind::all_to_all, 512) / far, 2, 0.1);
  EXPECT_EQ(time(CollectiveKind::all_gather, 512), ring);  // one of 32 nodes crosses
}

// Nodes of two domains: a leaf of 4 nodes hides 4, not 8.
TEST(EstimateCollective, ALeafHidesAnOversubscriptionOfItsNodes) {
  System system = hardware::find_system("h100_80g_nvl8");
  system.networks[0].size = 4;
  const auto ring = [&](double oversubscription) {
    system.networks[1].leaf = {.nodes = 4, .oversubscription = oversubscription};
    return estimate_collective(system, CollectiveKind::all_gather, {kGiB}, first_ranks(64),
                               {.algorithm = Algorithm::ring})
        ->time.value;
  };
  EXPECT_EQ(ring(4), ring(1));
  EXPECT_GT(ring(8), 1.8 * ring(4));
}

TEST(EstimateCollective, ReducesInTheSwitchesBetweenNodesIfTheyCan) {
  System h100 = hardware::find_system("h100_80g_nvl8");
  const CollectiveChoice sharp{.algorithm = Algorithm::in_network};
  EXPECT_FALSE(estimate_collective(h100, CollectiveKind::all_reduce, {kGiB}, first_ranks(96), sharp)
                   .has_value());
  hardware::CollectiveRates rates =
      h100.networks[1].collectives.value_or(hardware::CollectiveRates{});
  rates.in_switch = {.share = 0.5};
  h100.networks[1].collectives = rates;
  EXPECT_EQ(estimate(h100, CollectiveKind::all_reduce, kGiB, first_ranks(96)).algorithm,
            Algorithm::in_network);
}

// Measured on an H100 and a B200: a message of 64 MiB takes as long as one of 256 MiB.
TEST(EstimateMessage, UsesFewChannelsUnlessItIsLarge) {
  const System b200 = hardware::find_system("b200");
  const auto time = [&](std::int64_t mib) {
    return estimate_message(b200, b200.networks[0], {mib << 20}).value;
  };
  EXPECT_NEAR(time(64), 794e-6, 80e-6);
  EXPECT_NEAR(time(256), time(64), 1e-6);
  EXPECT_NEAR(time(8192), 12.99e-3, 1e-3);
}

TEST(Algorithm, HasTheNameThatNcclGivesIt) {
  EXPECT_EQ(to_string(Algorithm::in_switch_tree), "NVLSTree");
  EXPECT_EQ(to_string(Protocol::ll128), "LL128");
}

}  // namespace
}  // namespace shiplap::cost
