#include "shiplap/run/overlap_trial.h"

#include <gtest/gtest.h>

#include "shiplap/comm/ranks.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Problem;

overlap::Measurement tried(const Choice& choice, const Problem& problem, bool traces) {
  overlap::Measurement result;
  comm::run_ranks({.threads = problem.ranks}, [&](comm::Communicator& world) {
    overlap::Measurement own = try_overlap(world, choice, problem, {.rounds = 2, .traces = traces});
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

void expect_spread(const overlap::Spread& spread) {
  EXPECT_GT(spread.least.value, 0);
  EXPECT_LE(spread.least, spread.median);
  EXPECT_LE(spread.median, spread.most);
}

TEST(OverlapTrial, OfEveryMethodGivesWhatOneAfterTheOtherGives) {
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    if (legal.choice.type == overlap::Type::none) continue;
    for (const DType type : {DType::f32, DType::bf16}) {
      const Problem problem{
          .rows = 37, .columns = 12, .depth = 20, .type = type, .ranks = 2, .chunks = 3};
      const overlap::Measurement result = tried(legal.choice, problem, false);
      EXPECT_LE(result.difference, result.tolerance) << to_string(legal.choice);
      for (const overlap::Spread& spread :
           {result.product, result.communication, result.serial, result.overlapped}) {
        expect_spread(spread);
      }
      EXPECT_TRUE(result.trace.ranks.empty());
      EXPECT_FALSE(result.multiplied_by.empty());
    }
  }
}

// With codes, and rows of several groups; nothing divides anything.
TEST(OverlapTrial, OfCodesAndGroupsGivesWhatOneAfterTheOtherGives) {
  using overlap::Scaling;
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    if (legal.choice.type == overlap::Type::none || legal.choice.atomic) continue;
    for (const Scaling scaling : {Scaling::none, Scaling::row, Scaling::blocks}) {
      for (const DType codes : {DType::fp8_e4m3, DType::fp8_e5m2}) {
        for (const int groups : {0, 3}) {
          Problem problem{.rows = 37, .columns = 70, .depth = 131, .ranks = 2, .chunks = 3};
          problem.groups = groups;
          problem.x = problem.w = {.scaling = scaling, .type = codes};
          if (legal.choice.type != overlap::Type::all_gather) problem.sums = problem.x;
          const overlap::Measurement result = tried(legal.choice, problem, false);
          EXPECT_LE(result.difference, result.tolerance)
              << to_string(legal.choice) << ", " << name(scaling) << " " << shiplap::name(codes)
              << ", " << groups << " groups";
        }
      }
    }
  }
}

TEST(OverlapTrial, TracesAStepIfAsked) {
  const Choice choice{overlap::Type::all_gather, overlap::Method::ring_exchange};
  const Problem problem{.rows = 16, .columns = 8, .depth = 8, .ranks = 2, .chunks = 2};
  const overlap::Measurement result = tried(choice, problem, true);
  ASSERT_EQ(result.trace.ranks.size(), 2U);
  // Two receives, two sends, its own rows and two chunks of the other rank.
  for (const trace::RankTrace& rank : result.trace.ranks) EXPECT_EQ(rank.events.size(), 7U);
}

TEST(OverlapTrial, KnowsRoughlyWhatMemoryItNeeds) {
  const Choice choice{overlap::Type::all_gather, overlap::Method::ring_exchange};
  const Problem small{.rows = 64, .columns = 64, .depth = 64, .ranks = 2};
  Problem large = small;
  large.rows *= 10;
  EXPECT_GT(overlap_trial_bytes(choice, small), 3 * 2 * 64 * 64 * 2);
  EXPECT_GT(overlap_trial_bytes(choice, large), 3 * overlap_trial_bytes(choice, small));
}

}  // namespace
}  // namespace shiplap::run
