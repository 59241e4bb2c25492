#include "shiplap/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string>
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
      cases.push_back({"zb_h1", zb_h1, plain});
      cases.push_back({"dualpipev",
                       dualpipev,
                       {.stages = stages,
                        .microbatches = microbatches,
                        .chunks = 2,
                        .placement = Placement::v}});
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
    if (action.pass == Pass::forward) ++held;
    if (action.pass == Pass::backward || action.pass == Pass::backward_weight) --held;
    most = std::max(most, held);
  }
  return most;
}

struct Times {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  [[nodiscard]] double of(Pass pass) const {
    switch (pass) {
      case Pass::forward:
        return forward;
      case Pass::backward:
        return backward;
      case Pass::backward_input:
        return backward_input;
      case Pass::backward_weight:
        return backward_weight;
    }
    return 0;
  }
};

// Simulates a pipeline with free messages: each stage runs its actions in order, each as soon as
// its input is available. Independent of the formulas. Returns the end of the last action, or -1 if
// the stages deadlock.
double play(const Case& c, const Times& times) {
  const auto [stages, microbatches, chunks, placement] = c.pipeline;
  std::vector<std::vector<PipelineAction>> orders;
  for (int s = 0; s < stages; ++s) orders.push_back(c.order(c.pipeline, s));
  std::vector<std::size_t> next(stages, 0);
  std::vector<double> free(stages, 0);
  // By pass, place in the pipeline and microbatch: when it was done. A whole backward is done when
  // both halves are.
  std::map<std::tuple<Pass, int, int>, double> done;
  bool moved = true;
  while (moved) {
    moved = false;
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (next[i] == orders[i].size()) continue;
      const PipelineAction action = orders[i][next[i]];
      const bool returns = placement == Placement::v && action.chunk == 1;
      const int place = action.chunk * stages + (returns ? stages - 1 - s : s);
      std::tuple<Pass, int, int> needed{Pass::backward_input, place + 1, action.microbatch};
      if (action.pass == Pass::forward)
        needed = {Pass::forward, place - 1, action.microbatch};
      else if (action.pass == Pass::backward_weight)
        std::get<1>(needed) = place;
      else if (place == chunks * stages - 1)
        needed = {Pass::forward, place, action.microbatch};
      const bool is_input = action.pass == Pass::forward && place == 0;
      if (!is_input && !done.contains(needed)) continue;
      free[i] = std::max(free[i], is_input ? 0 : done[needed]) + times.of(action.pass);
      const bool whole = action.pass == Pass::backward;
      done[{whole ? Pass::backward_input : action.pass, place, action.microbatch}] = free[i];
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
      using Items = std::set<std::pair<int, int>>;
      std::map<Pass, Items> seen;
      for (const PipelineAction& action : c.order(c.pipeline, stage)) {
        const std::pair<int, int> what{action.chunk, action.microbatch};
        ASSERT_TRUE(action.chunk >= 0 && action.chunk < c.pipeline.chunks) << show(c);
        ASSERT_TRUE(action.microbatch >= 0 && action.microbatch < c.pipeline.microbatches)
            << show(c);
        ASSERT_TRUE(seen[action.pass].insert(what).second) << show(c);
        const Pass before =
            action.pass == Pass::backward_weight ? Pass::backward_input : Pass::forward;
        ASSERT_TRUE(action.pass == Pass::forward || seen[before].contains(what)) << show(c);
      }
      const auto all = static_cast<std::size_t>(c.pipeline.chunks * c.pipeline.microbatches);
      ASSERT_EQ(seen[Pass::forward].size(), all) << show(c);
      ASSERT_EQ(seen[Pass::backward].size() + seen[Pass::backward_input].size(), all) << show(c);
      ASSERT_EQ(seen[Pass::backward_input], seen[Pass::backward_weight]) << show(c);
    }
  }
}

TEST(Schedule, NeverDeadlocks) {
  for (const Case& c : all_small_cases()) ASSERT_GT(play(c, {}), 0) << show(c);
}

bool splits_backwards(const Case& c) {
  return std::string(c.name) == "zb_h1" || std::string(c.name) == "dualpipev";
}

TEST(Schedule, LeavesTheBubbleOfTheTextbook) {
  for (const Case& c : all_small_cases()) {
    if (splits_backwards(c)) continue;
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
  using enum Pass;
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
    const auto [stages, microbatches, chunks, placement] = c.pipeline;
    if (chunks == 1 || placement == Placement::v) continue;
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

// Table 1 of "Zero Bubble Pipeline Parallelism": (p - 1) (f + i - w).
TEST(ZbH1, LeavesTheBubbleOfItsPaper) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int m = stages; m <= 3 * stages; ++m) {
      const Case c{"zb_h1", zb_h1, {.stages = stages, .microbatches = m}};
      for (const auto& [f, i, w] :
           {std::array{1, 1, 1}, std::array{2, 2, 1}, std::array{2, 3, 1}, std::array{3, 2, 2}}) {
        const Times times{.forward = 1.0 * f,
                          .backward = 1.0 * (i + w),
                          .backward_input = 1.0 * i,
                          .backward_weight = 1.0 * w};
        ASSERT_EQ(play(c, times), m * (f + i + w) + (stages - 1) * (f + i - w))
            << show(c) << ", " << f << " " << i << " " << w;
      }
    }
  }
}

TEST(ZbH1, HoldsAsManyMicrobatchesOnEveryStageAs1f1bOnTheFirst) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int m = 1; m <= 20; ++m) {
      for (int stage = 0; stage < stages; ++stage) {
        ASSERT_EQ(max_held(zb_h1({.stages = stages, .microbatches = m}, stage)),
                  std::min(stages, m));
      }
    }
  }
}

TEST(DualPipeV, LeavesOneForwardOfAChunkPerStage) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int m = 2 * stages; m <= 4 * stages; ++m) {
      const Pipeline pipeline{
          .stages = stages, .microbatches = m, .chunks = 2, .placement = Placement::v};
      ASSERT_EQ(play({"dualpipev", dualpipev, pipeline}, {}), 6 * m + stages - 1) << stages << m;
      for (int stage = 0; stage < stages; ++stage) {
        ASSERT_EQ(max_held(dualpipev(pipeline, stage)), std::min(2 * stages + 1, 2 * m));
      }
    }
  }
}

std::string format(const Pipeline& pipeline, int stage,
                   const std::vector<PipelineAction>& actions) {
  std::string text;
  for (const PipelineAction& action : actions) {
    text += std::to_string(position_of(pipeline, stage, action.chunk)) +
            "FBIW"[static_cast<int>(action.pass)] + std::to_string(action.microbatch) + " ";
  }
  return text;
}

// As ScheduleDualPipeV of torch 2.15 calculates it, without its OVERLAP_F_B.
TEST(DualPipeV, IsTheOrderOfTorch) {
  const auto order = [](int stages, int microbatches, int stage) {
    const Pipeline pipeline{
        .stages = stages, .microbatches = microbatches, .chunks = 2, .placement = Placement::v};
    return format(pipeline, stage, dualpipev(pipeline, stage));
  };
  EXPECT_EQ(order(2, 4, 0),
            "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3 ");
  EXPECT_EQ(order(3, 7, 1),
            "1F0 1F1 1F2 4F0 1F3 4F1 4I0 4W0 4F2 1F4 4B1 4F3 1B0 1F5 4B2 4F4 1B1 1F6 4B3 4F5 1B2 "
            "4B4 4F6 1B3 4B5 1B4 4I6 1I5 4W6 1I6 1W5 1W6 ");
  EXPECT_EQ(order(4, 8, 2),
            "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 2F5 5B1 5F4 2B0 2F6 5B2 5F5 2B1 2F7 5B3 "
            "5F6 2B2 5B4 5F7 2B3 5B5 2B4 5B6 2I5 5I7 2I6 2W5 2I7 5W7 2W6 2W7 ");
}

TEST(Placement, OfAVReturnsToTheFirstStage) {
  const Pipeline v{.stages = 3, .chunks = 3, .placement = Placement::v};
  std::vector<int> stages;
  for (int at = 0; at < 9; ++at) {
    stages.push_back(stage_at(v, at));
    EXPECT_EQ(position_of(v, stages.back(), at / 3), at);
  }
  EXPECT_EQ(stages, (std::vector<int>{0, 1, 2, 2, 1, 0, 0, 1, 2}));
}

TEST(Schedule, PromisesAreKept) {
  EXPECT_THROW((void)dualpipev({.stages = 2, .microbatches = 2, .chunks = 2}, 0), InternalError);
  EXPECT_THROW((void)gpipe({.stages = 2}, 2), InternalError);
  EXPECT_THROW((void)one_f_one_b({.stages = 0}, 0), InternalError);
  EXPECT_THROW((void)gpipe({.stages = 2, .microbatches = 2, .chunks = 2}, 0), InternalError);
}

}  // namespace
}  // namespace shiplap::schedule
