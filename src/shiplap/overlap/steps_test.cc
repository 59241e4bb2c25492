#include "shiplap/overlap/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Step::Kind;

constexpr Problem kProblem{.m = 8, .n = 6, .k = 6, .ranks = 2, .chunks = 2};

std::vector<std::string> names(const plan::Plan& plan, int rank, Kind kind) {
  std::vector<std::string> found;
  for (const Step& step : steps_of(plan, rank)) {
    if (step.kind == kind) found.push_back(step.name);
  }
  return found;
}

TEST(OverlapSteps, OfARingFollowTheChunks) {
  const plan::Plan plan = make_plan({Type::all_gather, Method::ring_exchange}, kProblem);
  EXPECT_THAT(names(plan, 1, Kind::receive), ElementsAre("0.0", "0.1"));
  EXPECT_THAT(names(plan, 1, Kind::send), ElementsAre("1.0", "1.1"));
  EXPECT_THAT(names(plan, 1, Kind::gemm), ElementsAre("1", "0.0", "0.1"));
}

TEST(OverlapSteps, OfSumsAreThoseOfTheOwner) {
  const plan::Plan plan = make_plan({Type::reduce_scatter, Method::ring_exchange}, kProblem);
  EXPECT_THAT(names(plan, 1, Kind::gemm), ElementsAre("0.0", "0.1", "1.0", "1.1"));
  EXPECT_THAT(names(plan, 1, Kind::receive), ElementsAre("1.0", "1.1"));
  EXPECT_THAT(names(plan, 1, Kind::sum), ElementsAre("1.0", "1.1", "1.0", "1.0", "1.1", "1.1"));
}

TEST(OverlapSteps, OfAPipelineNameTheStage) {
  const plan::Plan plan = make_plan({Type::reduce_scatter, Method::pipeline}, kProblem);
  EXPECT_THAT(names(plan, 0, Kind::collective), ElementsAre("*.0", "*.1"));
  EXPECT_THAT(names(plan, 0, Kind::gemm), ElementsAre("0.0", "1.0", "0.1", "1.1"));
  const plan::Plan summed = make_plan({Type::all_reduce, Method::pipeline}, kProblem);
  EXPECT_THAT(names(summed, 0, Kind::collective), ElementsAre("0.0", "0.1", "1.0", "1.1"));
}

// Whatever is multiplied on any rank, its rows are those that its name says.
TEST(OverlapSteps, CoverAllRows) {
  for (const SupportedChoice& supported : supported_choices()) {
    for (const std::int64_t rows : {1, 3, 8, 29}) {
      const Problem problem{.m = rows, .n = 8, .k = 8, .ranks = 3, .chunks = 2};
      const plan::Plan plan = make_plan(supported.choice, problem);
      for (int rank = 0; rank < 3; ++rank) {
        std::multiset<std::int64_t> multiplied;
        for (const Step& step : steps_of(plan, rank)) {
          EXPECT_LE(step.first_row + step.rows, rows);
          if (step.kind != Kind::gemm) continue;
          for (std::int64_t k = 0; k < step.rows; ++k) multiplied.insert(step.first_row + k);
        }
        EXPECT_EQ(std::ssize(multiplied), rows) << to_string(supported.choice);
        EXPECT_EQ(std::ssize(std::set(multiplied.begin(), multiplied.end())), rows);
      }
    }
  }
}

TEST(Timeline, EndsWithTheLastRank) {
  const trace::Event first{.time = {2}, .duration = {3}};
  const trace::Event last{.time = {0}, .duration = {6}};
  const trace::Trace trace{.ranks = {{.events = {first}}, {.events = {last, first}}}};
  EXPECT_EQ(last_rank(trace), 1);
  EXPECT_EQ(end_of(trace).value, 6);
}

TEST(Timeline, GoesByTimeAndLeavesOutWhatTakesNone) {
  const plan::Plan plan =
      make_plan({Type::all_gather, Method::ring_exchange}, {.m = 2, .n = 2, .k = 2, .ranks = 2});
  const trace::Trace trace{.ranks = {{.events = {{.operation = 0, .time = {5}, .duration = {1}},
                                                 {.operation = 1, .time = {1}, .duration = {0}},
                                                 {.operation = 2, .time = {1}, .duration = {2}}}}}};
  const std::vector<TimedStep> steps = timeline(plan, trace, 0);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].step.kind, Kind::gemm);
  EXPECT_EQ(steps[0].end.value, 3);
  EXPECT_EQ(steps[1].step.kind, Kind::receive);
  EXPECT_THAT(timeline(plan, {.ranks = {{}}}, 0), IsEmpty());
}

}  // namespace
}  // namespace shiplap::overlap
