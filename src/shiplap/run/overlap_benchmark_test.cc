#include "shiplap/run/overlap_benchmark.h"

#include <gtest/gtest.h>

#include "shiplap/comm/ranks.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Problem;

overlap::Measurement benchmarked(const Choice& choice, const Problem& problem, bool traces) {
  overlap::Measurement result;
  comm::run_ranks({.threads = problem.ranks}, [&](comm::Communicator& world) {
    overlap::Measurement local =
        benchmark_overlap(world, choice, problem, {.rounds = 2, .traces = traces});
    if (world.rank() == 0) result = std::move(local);
  });
  return result;
}

void expect_spread(const overlap::Spread& spread) {
  EXPECT_GT(spread.min.value, 0);
  EXPECT_LE(spread.min, spread.median);
  EXPECT_LE(spread.median, spread.max);
}

TEST(OverlapBenchmark, OfEveryMethodGivesWhatOneAfterTheOtherGives) {
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    if (supported.choice.type == overlap::Type::none) continue;
    for (const DType type : {DType::f32, DType::bf16}) {
      const Problem problem{.m = 37, .n = 12, .k = 20, .type = type, .ranks = 2, .chunks = 3};
      const overlap::Measurement result = benchmarked(supported.choice, problem, false);
      EXPECT_LE(result.difference, result.tolerance) << to_string(supported.choice);
      for (const overlap::Spread& spread :
           {result.gemm, result.communication, result.serial, result.overlapped}) {
        expect_spread(spread);
      }
      EXPECT_TRUE(result.trace.ranks.empty());
      EXPECT_FALSE(result.gemm_backend.empty());
    }
  }
}

// With FP8 and several groups; no size divides another.
TEST(OverlapBenchmark, OfCodesAndGroupsGivesWhatOneAfterTheOtherGives) {
  using overlap::Scaling;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    if (supported.choice.type == overlap::Type::none || supported.choice.atomic) continue;
    for (const Scaling scaling : {Scaling::none, Scaling::row, Scaling::blocks}) {
      for (const DType codes : {DType::fp8_e4m3, DType::fp8_e5m2}) {
        for (const int groups : {0, 3}) {
          Problem problem{.m = 37, .n = 70, .k = 131, .ranks = 2, .chunks = 3};
          problem.groups = groups;
          problem.x = problem.w = {.scaling = scaling, .type = codes};
          if (supported.choice.type != overlap::Type::all_gather) problem.sums = problem.x;
          const overlap::Measurement result = benchmarked(supported.choice, problem, false);
          EXPECT_LE(result.difference, result.tolerance)
              << to_string(supported.choice) << ", " << name(scaling) << " " << shiplap::name(codes)
              << ", " << groups << " groups";
        }
      }
    }
  }
}

TEST(OverlapBenchmark, TracesAStepIfAsked) {
  const Choice choice{overlap::Type::all_gather, overlap::Method::ring_exchange};
  const Problem problem{.m = 16, .n = 8, .k = 8, .ranks = 2, .chunks = 2};
  const overlap::Measurement result = benchmarked(choice, problem, true);
  ASSERT_EQ(result.trace.ranks.size(), 2U);
  // Two receives, two sends, the local rows and two chunks of the other rank.
  for (const trace::RankTrace& rank : result.trace.ranks) EXPECT_EQ(rank.events.size(), 7U);
}

TEST(OverlapBenchmark, KnowsRoughlyWhatMemoryItNeeds) {
  const Choice choice{overlap::Type::all_gather, overlap::Method::ring_exchange};
  const Problem small{.m = 64, .n = 64, .k = 64, .ranks = 2};
  Problem large = small;
  large.m *= 10;
  EXPECT_GT(overlap_benchmark_bytes(choice, small), 3 * 2 * 64 * 64 * 2);
  EXPECT_GT(overlap_benchmark_bytes(choice, large), 3 * overlap_benchmark_bytes(choice, small));
}

}  // namespace
}  // namespace shiplap::run
