#include "shiplap/cost/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::cost {
namespace {

using hardware::Efficiency;
using hardware::Network;
using hardware::ProcessingMode;
using hardware::System;
using plan::Memory;

// Round numbers, all different, so that each can be recognized in the time.
System small() {
  System system{.name = "small"};
  system.matrix.speed(DType::f16) = {
      .peak = {1000},
      .efficiency = Efficiency({{.at_least = 100, .share = 0.5}, {.at_least = 0, .share = 0.1}})};
  system.vector.speed(DType::f32) = {.peak = {10}};
  system.mem1 = {
      .capacity = {1000},
      .peak = {200},
      .efficiency = Efficiency({{.at_least = 50, .share = 0.5}, {.at_least = 0, .share = 0.25}})};
  system.mem2 = {.capacity = {1000}, .peak = {4}};
  system.networks = {{.bandwidth = {20},
                      .efficiency = 0.5,
                      .size = 4,
                      .latency = {1},
                      .p2p = {.scalar = 2, .offset = 0},
                      .reduce_scatter = {.scalar = 1, .offset = -1},
                      .all_gather = {.scalar = 1.5, .offset = -1},
                      .all_reduce = {.scalar = 2, .offset = -1}},
                     {.bandwidth = {5}, .efficiency = 0.8, .size = 16, .latency = {3}}};
  return system;
}

RankSpan whole_block(std::int64_t ranks) {
  return {.ranks = ranks, .lowest = 0, .highest = ranks - 1};
}

TEST(RankSpan, IsTheNumberAndTheEndsOfAnyRanks) {
  const RankSpan grid = rank_span(plan::RankSet(Rank(3), {{.count = 4, .stride = 8}}));
  EXPECT_EQ(grid.ranks, 4);
  EXPECT_EQ(grid.lowest, 3);
  EXPECT_EQ(grid.highest, 27);
  const RankSpan listed = rank_span(plan::RankSet({Rank(9), Rank(2), Rank(11), Rank(4)}));
  EXPECT_EQ(listed.ranks, 4);
  EXPECT_EQ(listed.lowest, 2);
  EXPECT_EQ(listed.highest, 11);
}

// All sets of ranks of a world of 8, on networks of all sizes, against a search of the blocks.
TEST(NetworkFor, IsTheFirstWithABlockThatHoldsAllRanks) {
  constexpr std::int64_t kWorld = 8;
  for (std::int64_t near = 1; near <= kWorld; ++near) {
    for (std::int64_t far = near + 1; far <= kWorld + 1; ++far) {
      System system;
      system.networks = {{.size = near}, {.size = far}};
      for (unsigned members = 1; members < 1U << kWorld; ++members) {
        std::vector<Rank> ranks;
        for (std::int32_t rank = 0; rank < kWorld; ++rank) {
          if ((members >> static_cast<unsigned>(rank) & 1U) != 0) ranks.emplace_back(rank);
        }
        std::size_t expected = 1;
        for (std::int64_t begin = 0; begin < kWorld; begin += near) {
          const bool inside = std::ranges::all_of(
              ranks, [&](Rank rank) { return rank.value >= begin && rank.value < begin + near; });
          if (inside) expected = 0;
        }
        const RankSpan span = rank_span(plan::RankSet(ranks));
        ASSERT_EQ(&network_for(system, span), &system.networks[expected])
            << near << " " << far << " " << members;
      }
    }
  }
}

TEST(CollectiveTime, IsLatencyPlusWhatMovesOverWhatIsReached) {
  const System system = small();
  // The nearer network carries 10 bytes a second, the farther 4.
  const auto near = [&](CollectiveKind kind) {
    return collective_time(system, kind, {40}, whole_block(4)).value;
  };
  EXPECT_DOUBLE_EQ(near(CollectiveKind::reduce_scatter), 1 + 40 * 0.75 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::all_gather), 1 + 40 * 1.5 * 0.75 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::all_reduce), 1 + 40 * 2 * 0.75 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::all_to_all), 1 + 40 * 0.75 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::broadcast), 1 + 40.0 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::reduce), 1 + 40.0 / 10);
  EXPECT_DOUBLE_EQ(near(CollectiveKind::barrier), 1);
  EXPECT_DOUBLE_EQ(collective_time(system, CollectiveKind::all_gather, {40}, whole_block(5)).value,
                   3 + 40.0 / 4);
}

TEST(CollectiveTime, IsNothingForARankAlone) {
  for (const auto kind : {CollectiveKind::all_reduce, CollectiveKind::barrier}) {
    EXPECT_EQ(collective_time(small(), kind, {40}, {.ranks = 1, .lowest = 7, .highest = 7}).value,
              0);
  }
}

// Simulates a ring: in each of n - 1 rounds every rank passes one chunk to its neighbour.
TEST(CollectiveTime, OfAFileInCalculonsFormatIsThatOfARing) {
  for (const char* const name : {"h100_80g_nvl8", "mi300x"}) {
    const System system = hardware::find_system(std::string("tests/hardware/") + name + ".json");
    for (std::int64_t ranks = 2; ranks <= 17; ++ranks) {
      const Network& network = system.networks[ranks <= 8 ? 0 : 1];
      const Bytes whole{ranks * 1'000'000};
      double gathering = 0;
      std::set<std::int64_t> held{0};  // pieces on rank 0; its neighbour sends 0-1, 0-2, ...
      for (std::int64_t round = 1; static_cast<std::int64_t>(held.size()) < ranks; ++round) {
        held.insert((ranks - round) % ranks);
        gathering += 1e6 / (network.bandwidth.bytes_per_second * network.efficiency);
      }
      const auto time = [&](CollectiveKind kind) {
        return collective_time(system, kind, whole, whole_block(ranks)).value;
      };
      const double latency = network.latency.value;
      EXPECT_NEAR(time(CollectiveKind::all_gather), latency + gathering, 1e-12);
      EXPECT_NEAR(time(CollectiveKind::reduce_scatter), latency + gathering, 1e-12);
      EXPECT_NEAR(time(CollectiveKind::all_reduce), latency + 2 * gathering, 1e-12);
    }
  }
}

TEST(MessageTime, DependsOnHowFarApartTheRanksAre) {
  const System system = small();
  EXPECT_DOUBLE_EQ(message_time(system, {40}, Rank(0), Rank(3)).value, 1 + 2 * 40.0 / 10);
  EXPECT_DOUBLE_EQ(message_time(system, {40}, Rank(3), Rank(0)).value, 1 + 2 * 40.0 / 10);
  EXPECT_DOUBLE_EQ(message_time(system, {40}, Rank(4), Rank(3)).value, 3 + 40.0 / 4);
  EXPECT_DOUBLE_EQ(message_time(system, {40}, Rank(0), Rank(1000)).value, 3 + 40.0 / 4);
  EXPECT_EQ(message_time(system, {40}, Rank(2), Rank(2)),
            copy_time(system, {40}, Memory::device, Memory::device));
}

TEST(ExchangeTime, IsThatOfTheSlowestNetworkAndItsBusierDirection) {
  const System system = small();
  using Traffic = ExchangeLoad::Traffic;
  const Traffic none;
  const auto time = [&](const std::vector<Traffic>& out, const std::vector<Traffic>& in) {
    return exchange_time(system, {.out = out, .in = in}).value;
  };
  EXPECT_EQ(time({none, none}, {none, none}), 0);
  EXPECT_DOUBLE_EQ(time({{3, {50}}, none}, {{1, {20}}, none}), 1 + 50.0 / 10);
  EXPECT_DOUBLE_EQ(time({none, none}, {{1, {20}}, none}), 1 + 20.0 / 10);
  EXPECT_DOUBLE_EQ(time({{3, {50}}, {1, {8}}}, {none, {1, {16}}}), 3 + 16.0 / 4);
  EXPECT_DOUBLE_EQ(time({{3, {50}}, {1, {0}}}, {none, none}), 1 + 50.0 / 10);
  EXPECT_THROW((void)time({none}, {}), InternalError);
}

TEST(ComputeTime, IsTheSlowerOfTwoOrTheirSum) {
  System system = small();
  // 100 flop at 500 a second; 50 bytes at 100 a second.
  const ComputeWork work{.kernel_class = "gemm", .flop = 100, .bytes = 50};
  EXPECT_DOUBLE_EQ(compute_time(system, work).value, 0.5);
  EXPECT_DOUBLE_EQ(compute_time(system, {.kernel_class = "attention", .flop = 1000}).value, 2);
  // Below the thresholds: 99 flop at 100 a second, 49 bytes at 50 a second.
  EXPECT_DOUBLE_EQ(compute_time(system, {.kernel_class = "gemm", .flop = 99, .bytes = 49}).value,
                   0.99);
  system.processing_mode = ProcessingMode::no_overlap;
  EXPECT_DOUBLE_EQ(compute_time(system, work).value, 0.2 + 0.5);
}

TEST(ComputeTime, RunsOnTheUnitOfItsClass) {
  const System system = small();
  // The vector unit, which computes every type as float32: 10 flop a second.
  EXPECT_DOUBLE_EQ(compute_time(system, {.kernel_class = "update", .flop = 100}).value, 10);
  EXPECT_DOUBLE_EQ(compute_time(system, {.kernel_class = "", .flop = 100}).value, 10);
  // The bus.
  EXPECT_DOUBLE_EQ(compute_time(system, {.kernel_class = "load", .flop = 1e9, .bytes = 50}).value,
                   12.5);
}

TEST(ComputeTime, NeedsASpeedOnlyForWhatIsComputed) {
  const System system = small();
  EXPECT_DOUBLE_EQ(
      compute_time(system, {.kernel_class = "gemm", .bytes = 50, .type = DType::f32}).value, 0.5);
  try {
    (void)compute_time(system, {.kernel_class = "gemm", .flop = 1, .type = DType::f32});
    FAIL() << "has a time";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics()[0].code, "D602");
    EXPECT_EQ(error.diagnostics()[0].what, "`small` has no speed of its matrix unit in float32");
  }
}

TEST(CopyTime, ReadsAndWritesWithinTheDeviceAndElseTakesTheBus) {
  const System system = small();
  EXPECT_DOUBLE_EQ(copy_time(system, {25}, Memory::device, Memory::device).value, 50.0 / 100);
  EXPECT_DOUBLE_EQ(copy_time(system, {24}, Memory::device, Memory::device).value, 48.0 / 50);
  EXPECT_DOUBLE_EQ(copy_time(system, {24}, Memory::host, Memory::device).value, 6);
  EXPECT_DOUBLE_EQ(copy_time(system, {24}, Memory::device, Memory::host).value, 6);
  EXPECT_DOUBLE_EQ(copy_time(system, {24}, Memory::host, Memory::host).value, 6);
}

TEST(CostModel, OfAFreeSystemIsNothing) {
  const System system = hardware::zero_cost_system();
  EXPECT_EQ(compute_time(system, {.kernel_class = "gemm", .flop = 1e18, .bytes = 1e15}).value, 0);
  EXPECT_EQ(collective_time(system, CollectiveKind::all_reduce, {1 << 30}, whole_block(99)).value,
            0);
  EXPECT_EQ(message_time(system, {1 << 30}, Rank(0), Rank(77)).value, 0);
  EXPECT_EQ(copy_time(system, {1 << 30}, Memory::host, Memory::device).value, 0);
}

// A larger job may reach a better efficiency, and so be done sooner; but between two thresholds
// time never falls, nor does it fall anywhere on a network.
TEST(CostModel, NeverFallsAsBytesGrowWithinAStep) {
  constexpr std::uint64_t kSeed = 6;
  Random random(kSeed);
  for (const std::string& name : hardware::known_systems()) {
    const System system = hardware::find_system(name);
    constexpr std::array<std::int64_t, 5> kEdges{0, 1'000'000, 10'000'000, 100'000'000,
                                                 1'000'000'000'000};
    for (std::size_t step = 0; step + 1 < kEdges.size(); ++step) {
      for (int i = 0; i < 50; ++i) {
        const auto at = [&] { return random.between(kEdges[step], kEdges[step + 1]); };
        const std::int64_t one = at();
        const std::int64_t other = at();
        const Bytes few{std::min(one, other)};
        const Bytes many{std::max(one, other)};
        const auto time = [&](const char* kernel_class, Bytes bytes) {
          return compute_time(
              system, {.kernel_class = kernel_class, .bytes = static_cast<double>(bytes.count)});
        };
        EXPECT_LE(time("gemm", few), time("gemm", many)) << name << " seed " << kSeed;
        EXPECT_LE(time("load", few), time("load", many)) << name << " seed " << kSeed;
        const RankSpan span = whole_block(2 + i);
        EXPECT_LE(collective_time(system, CollectiveKind::all_reduce, few, span),
                  collective_time(system, CollectiveKind::all_reduce, many, span));
        EXPECT_LE(message_time(system, few, Rank(0), Rank(i + 1)),
                  message_time(system, many, Rank(0), Rank(i + 1)));
      }
    }
  }
}

TEST(CostModel, OverTheFartherNetworkIsHigher) {
  for (const std::string& name : hardware::known_systems()) {
    const System system = hardware::find_system(name);
    const auto size = static_cast<std::int32_t>(system.networks[0].size);
    const RankSpan near{.ranks = 8, .lowest = size, .highest = size + 7};
    const RankSpan far{.ranks = 8, .lowest = size - 1, .highest = size + 6};
    EXPECT_LT(collective_time(system, CollectiveKind::all_gather, {1 << 20}, near),
              collective_time(system, CollectiveKind::all_gather, {1 << 20}, far));
    EXPECT_LT(message_time(system, {1 << 20}, Rank(size), Rank(size + 7)),
              message_time(system, {1 << 20}, Rank(size - 1), Rank(size)));
  }
}

}  // namespace
}  // namespace shiplap::cost
