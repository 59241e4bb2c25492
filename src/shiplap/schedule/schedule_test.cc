#include "shiplap/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "shiplap/base/error.h"

namespace shiplap::schedule {
namespace {

using Order = std::function<std::vector<PipelineAction>(const Pipeline&, int)>;

// A schedule, with a pipeline that it supports.
struct Case {
  const char* name;
  Order order;
  Pipeline pipeline;
};

std::vector<Case> all_small_cases() {
  std::vector<Case> cases;
  for (int stages = 1; stages <= 6; ++stages) {
    for (int microbatches = 1; microbatches <= 13; ++microbatches) {
      const Pipeline plain{.stages = stages, .microbatches = microbatches};
      cases.push_back({"gpipe", gpipe, plain});
      cases.push_back({"one_f_one_b", one_f_one_b, plain});
      cases.push_back({"interleaved", interleaved, plain});
      if (microbatches % stages != 0) continue;
      for (int chunks = 2; chunks <= 4; ++chunks) {
        cases.push_back({"interleaved",
                         interleaved,
                         {.stages = stages, .microbatches = microbatches, .chunks = chunks}});
      }
    }
  }
  return cases;
}

std::string show(const Case& c) {
  return std::string(c.name) + ", " + std::to_string(c.pipeline.stages) + " stages, " +
         std::to_string(c.pipeline.microbatches) + " microbatches, " +
         std::to_string(c.pipeline.chunks) + " chunks";
}

// The maximum number of chunk activations held.
int max_held(const std::vector<PipelineAction>& order) {
  int held = 0;
  int most = 0;
  for (const PipelineAction& action : order) {
    held += action.direction == Direction::forward ? 1 : -1;
    most = std::max(most, held);
  }
  return most;
}

struct Times {
  double forward = 1;
  double backward = 2;
};

// Simulates a pipeline with free messages: each stage runs its actions in order, each as soon as
// its input is available. Independent of the formulas. Returns the end of the last action, or -1 if
// the stages deadlock.
double play(const Case& c, const Times& times) {
  const auto [stages, microbatches, chunks] = c.pipeline;
  std::vector<std::vector<PipelineAction>> orders;
  for (int s = 0; s < stages; ++s) orders.push_back(c.order(c.pipeline, s));
  std::vector<std::size_t> next(stages, 0);
  std::vector<double> free(stages, 0);
  // By direction, place in the pipeline and microbatch: when it was done.
  std::map<std::tuple<Direction, int, int>, double> done;
  bool moved = true;
  while (moved) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (next[i] == orders[i].size()) continue;
      const PipelineAction action = orders[i][next[i]];
      const bool forward = action.direction == Direction::forward;
      const int place = action.chunk * stages + s;
      double ready = 0;
      const bool turns_round = !forward && place == chunks * stages - 1;
      if (!forward || place > 0) {
        const auto needed =
            turns_round
                ? done.find({Direction::forward, place, action.microbatch})
                : done.find({action.direction, forward ? place - 1 : place + 1, action.microbatch});
        if (needed == done.end()) continue;
        ready = needed->second;
      }
      free[i] = std::max(free[i], ready) + (forward ? times.forward : times.backward);
      done[{action.direction, place, action.microbatch}] = free[i];
      ++next[i];
      moved = true;
    }
  }
  for (int s = 0; s < stages; ++s) {
    const auto i = static_cast<std::size_t>(s);
    if (next[i] != orders[i].size()) return -1;
  }
  return *std::ranges::max_element(free);
}

TEST(Schedule, DoesEveryChunkOfEveryMicrobatchOnceForwardAndThenOnceBackward) {
  for (const Case& c : all_small_cases()) {
    for (int stage = 0; stage < c.pipeline.stages; ++stage) {
      std::set<std::pair<int, int>> forward;
      std::set<std::pair<int, int>> backward;
      for (const PipelineAction& action : c.order(c.pipeline, stage)) {
        const std::pair<int, int> what{action.chunk, action.microbatch};
        ASSERT_TRUE(action.chunk >= 0 && action.chunk < c.pipeline.chunks) << show(c);
        ASSERT_TRUE(action.microbatch >= 0 && action.microbatch < c.pipeline.microbatches)
            << show(c);
        if (action.direction == Direction::forward) {
          ASSERT_TRUE(forward.insert(what).second) << show(c);
        } else {
          ASSERT_TRUE(forward.contains(what)) << show(c);
          ASSERT_TRUE(backward.insert(what).second) << show(c);
        }
      }
      const auto all = static_cast<std::size_t>(c.pipeline.chunks * c.pipeline.microbatches);
      ASSERT_EQ(forward.size(), all) << show(c);
      ASSERT_EQ(backward.size(), all) << show(c);
    }
  }
}

TEST(Schedule, LeavesTheBubbleOfTheTextbook) {
  for (const Case& c : all_small_cases()) {
    for (const Times times :
         {Times{.forward = 1, .backward = 1}, Times{.forward = 1, .backward = 2},
          Times{.forward = 3, .backward = 1}}) {
      const int busy = c.pipeline.chunks * c.pipeline.microbatches;
      const double end = play(c, times);
      ASSERT_EQ(end, (busy + c.pipeline.stages - 1) * (times.forward + times.backward))
          << show(c) << ", forward " << times.forward << ", backward " << times.backward;
      const double bubble = 1 - busy * (times.forward + times.backward) / end;
      ASSERT_NEAR(bubble, (c.pipeline.stages - 1.0) / (busy + c.pipeline.stages - 1.0), 1e-12)
          << show(c);
    }
  }
}

TEST(Gpipe, HoldsAllMicrobatches) {
  EXPECT_EQ(max_held(gpipe({.stages = 4, .microbatches = 9}, 0)), 9);
  EXPECT_EQ(max_held(gpipe({.stages = 4, .microbatches = 9}, 3)), 9);
}

TEST(OneFOneB, HoldsNoMoreMicrobatchesThanThereAreStagesFromHereToTheEnd) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int microbatches = 1; microbatches <= 20; ++microbatches) {
      for (int stage = 0; stage < stages; ++stage) {
        const std::vector<PipelineAction> order =
            one_f_one_b({.stages = stages, .microbatches = microbatches}, stage);
        ASSERT_EQ(max_held(order), std::min(stages - stage, microbatches));
      }
    }
  }
}

TEST(Interleaved, IsTheOrderThatMegatronPrints) {
  // Two stages, two chunks, four microbatches. Stage 1, the last: two forwards ahead.
  using enum Direction;
  const std::vector<PipelineAction> last{
      {forward, 0, 0}, {forward, 0, 1},  {forward, 1, 0},  {backward, 1, 0},
      {forward, 1, 1}, {backward, 1, 1}, {forward, 0, 2},  {backward, 0, 0},
      {forward, 0, 3}, {backward, 0, 1}, {forward, 1, 2},  {backward, 1, 2},
      {forward, 1, 3}, {backward, 1, 3}, {backward, 0, 2}, {backward, 0, 3}};
  EXPECT_EQ(interleaved({.stages = 2, .microbatches = 4, .chunks = 2}, 1), last);
}

TEST(Interleaved, WithOneChunkIsOneFOneB) {
  const Pipeline pipeline{.stages = 4, .microbatches = 6};
  EXPECT_EQ(interleaved(pipeline, 1), one_f_one_b(pipeline, 1));
}

TEST(Interleaved, HoldsAtMostItsWarmupAndOne) {
  for (const Case& c : all_small_cases()) {
    const auto [stages, microbatches, chunks] = c.pipeline;
    if (chunks == 1) continue;
    for (int stage = 0; stage < stages; ++stage) {
      const int ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1;
      ASSERT_EQ(max_held(c.order(c.pipeline, stage)), std::min(ahead, chunks * microbatches))
          << show(c);
    }
  }
}

TEST(Interleaved, RefusesMicrobatchesThatStagesDoNotDivide) {
  try {
    (void)interleaved({.stages = 4, .microbatches = 6, .chunks = 2}, 0);
    FAIL() << "6 microbatches are no groups of 4";
  } catch (const InputError& error) {
    const Diagnostic& d = error.diagnostics().front();
    EXPECT_EQ(d.code, "D622");
    EXPECT_EQ(d.what, "6 microbatches cannot be interleaved on 4 stages");
    EXPECT_EQ(d.help, "take 4 or 8 microbatches");
  }
  try {
    (void)interleaved({.stages = 4, .microbatches = 3, .chunks = 2}, 0);
    FAIL() << "3 microbatches are no group of 4";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().help, "take 4 microbatches");
  }
}

TEST(Schedule, PromisesAreKept) {
  EXPECT_THROW((void)gpipe({.stages = 2}, 2), InternalError);
  EXPECT_THROW((void)one_f_one_b({.stages = 0}, 0), InternalError);
  EXPECT_THROW((void)gpipe({.stages = 2, .microbatches = 2, .chunks = 2}, 0), InternalError);
}

}  // namespace
}  // namespace shiplap::schedule
