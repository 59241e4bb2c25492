// Pipelines against a clock of their own: when each action begins, by the rules of a pipeline that
// posts its receives one action ahead, and the durations of single operations. It shares nothing
// else with the replay.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cases.h"
#include "shiplap/hardware/system.h"
#include "shiplap/schedule/schedule.h"
#include "shiplap/trace/summary.h"

namespace shiplap::strategy {
namespace {

using schedule::Pass;
using schedule::PipelineAction;
using trace::EventKind;

std::vector<PipelineAction> actions_of(const std::string& name, const schedule::Pipeline& pipeline,
                                       int stage) {
  if (name == "gpipe") return schedule::gpipe(pipeline, stage);
  if (name == "1f1b") return schedule::one_f_one_b(pipeline, stage);
  if (name == "zb_h1") return schedule::zb_h1(pipeline, stage);
  if (name == "dualpipev") return schedule::dualpipev(pipeline, stage);
  return schedule::interleaved(pipeline, stage);
}

double duration_of(const trace::Trace& trace, EventKind kind) {
  for (const trace::RankTrace& rank : trace.ranks) {
    for (const trace::Event& event : rank.events) {
      if (event.kind == kind) return event.duration.value;
    }
  }
  return 0;
}

class PipelineClock {
 public:
  struct Costs {
    double start = 0;  // when the weights are loaded
    double forward = 0;
    double backward = 0;  // of all layers of a chunk
    double backward_input = 0;
    double backward_weight = 0;
    double message = 0;
    [[nodiscard]] double of(Pass pass) const {
      const std::array<double, 4> all{forward, backward, backward_input, backward_weight};
      return all.at(static_cast<std::size_t>(pass));
    }
  };

  PipelineClock(const std::string& name, const schedule::Pipeline& pipeline, const Costs& costs)
      : pipeline_(pipeline), costs_(costs) {
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      actions_.push_back(actions_of(name, pipeline, stage));
      begin_.emplace_back(actions_.back().size(), costs.start);
      end_.emplace_back(actions_.back().size(), costs.start);
    }
    while (pass()) {
    }
  }

  // By stage and action.
  [[nodiscard]] const std::vector<std::vector<double>>& begin() const { return begin_; }
  [[nodiscard]] const std::vector<PipelineAction>& actions(int stage) const {
    return actions_[static_cast<std::size_t>(stage)];
  }

 private:
  struct Place {
    std::size_t stage = 0;
    std::size_t action = 0;
  };

  [[nodiscard]] int last_chunk() const { return pipeline_.stages * pipeline_.chunks - 1; }
  [[nodiscard]] PipelineAction action(Place at) const { return actions_[at.stage][at.action]; }
  [[nodiscard]] bool is_v() const { return pipeline_.placement == schedule::Placement::v; }
  [[nodiscard]] int chunk_number(Place at) const {
    const int chunk = action(at).chunk;
    const int stage = static_cast<int>(at.stage);
    const bool returns = is_v() && chunk == 1;
    return chunk * pipeline_.stages + (returns ? pipeline_.stages - 1 - stage : stage);
  }
  [[nodiscard]] int stage_of(int chunk) const {
    const bool returns = is_v() && chunk >= pipeline_.stages;
    return returns ? last_chunk() - chunk : chunk % pipeline_.stages;
  }
  // Forward, or else the backward that makes the gradient of the input, whole or not.
  [[nodiscard]] Place find(int chunk, bool forward, int microbatch) const {
    const auto stage = static_cast<std::size_t>(stage_of(chunk));
    for (std::size_t k = 0; k < actions_[stage].size(); ++k) {
      const PipelineAction found = actions_[stage][k];
      if (found.pass == Pass::backward_weight || (found.pass == Pass::forward) != forward) continue;
      if (found.chunk == chunk / pipeline_.stages && found.microbatch == microbatch) {
        return {stage, k};
      }
    }
    return {};
  }

  // A receive is posted when the last action but one has ended that has a message, or whatever
  // follows it without one.
  [[nodiscard]] double posted(Place at) const {
    std::size_t k = at.action;
    while (k > 0 && actions_[at.stage][k - 1].pass == Pass::backward_weight) --k;
    return k < 2 ? costs_.start : end_[at.stage][k - 2];
  }
  // When the message from one action to another is there, and its sender free. Between chunks of
  // one stage there is none.
  [[nodiscard]] double delivered(Place from, Place to) const {
    const double sent = end_[from.stage][from.action];
    return from.stage == to.stage ? sent : std::max(sent, posted(to)) + costs_.message;
  }

  // When the action may begin, by the estimates so far.
  [[nodiscard]] double earliest(Place at) const {
    const auto [pass, chunk_here, microbatch] = action(at);
    const int chunk = chunk_number(at);
    double time = at.action == 0 ? costs_.start : end_[at.stage][at.action - 1];
    if (pass == Pass::backward_weight) return time;
    if (pass == Pass::forward) {
      if (chunk == 0) return time;
      return std::max(time, delivered(find(chunk - 1, true, microbatch), at));
    }
    if (chunk < last_chunk()) {
      const Place next = find(chunk + 1, false, microbatch);
      const Place forward = find(chunk, true, microbatch);
      const Place after = find(chunk + 1, true, microbatch);
      time = std::max({time, delivered(next, at), delivered(forward, after)});
    }
    // The gradient that this chunk sent before.
    for (std::size_t k = at.action; chunk > 0 && k-- > 0;) {
      const PipelineAction before = actions_[at.stage][k];
      if (before.chunk != chunk_here || before.pass == Pass::forward) continue;
      if (before.pass == Pass::backward_weight) continue;
      return std::max(time, delivered({at.stage, k}, find(chunk - 1, false, before.microbatch)));
    }
    return time;
  }

  // Returns whether anything changed.
  bool pass() {
    bool changed = false;
    for (std::size_t stage = 0; stage < actions_.size(); ++stage) {
      for (std::size_t k = 0; k < actions_[stage].size(); ++k) {
        const double begin = earliest({stage, k});
        const double end = begin + costs_.of(actions_[stage][k].pass);
        changed |= begin != begin_[stage][k] || end != end_[stage][k];
        begin_[stage][k] = begin;
        end_[stage][k] = end;
      }
    }
    return changed;
  }

  schedule::Pipeline pipeline_;
  Costs costs_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<std::vector<double>> begin_;
  std::vector<std::vector<double>> end_;
};

Case case_of(const std::string& name, int stages, int microbatches, int chunks) {
  return {.strategy = name,
          .size = {.ranks = stages,
                   .layers = 4 * stages,
                   .batch = microbatches,
                   .microbatches = microbatches,
                   .chunks = chunks > 1 ? chunks : 0}};
}

void expect_clock(const Case& c, int chunks, const trace::Trace& trace) {
  const int layers = c.size.layers / c.size.ranks / chunks;
  const double load = duration_of(trace, EventKind::load_weights);
  const PipelineClock clock(
      c.strategy,
      {.stages = c.size.ranks,
       .microbatches = c.size.microbatches,
       .chunks = chunks,
       .placement = c.strategy == "dualpipev" ? schedule::Placement::v : schedule::Placement::loop},
      {.start = load * layers * chunks,
       .forward = layers * duration_of(trace, EventKind::forward),
       .backward = layers * duration_of(trace, EventKind::backward),
       .backward_input = layers * duration_of(trace, EventKind::backward_input),
       .backward_weight = layers * duration_of(trace, EventKind::backward_weight),
       .message = duration_of(trace, EventKind::send)});
  for (int stage = 0; stage < c.size.ranks; ++stage) {
    std::vector<double> begins;
    for (const trace::Event& event : trace.ranks[static_cast<std::size_t>(stage)].events) {
      constexpr std::array kPasses{EventKind::forward, EventKind::backward,
                                   EventKind::backward_input, EventKind::backward_weight};
      if (std::ranges::find(kPasses, event.kind) == kPasses.end()) continue;
      begins.push_back(event.time.value);
    }
    const std::vector<double>& expected = clock.begin()[static_cast<std::size_t>(stage)];
    ASSERT_EQ(begins.size(), expected.size() * static_cast<std::size_t>(layers));
    for (std::size_t k = 0; k < expected.size(); ++k) {
      ASSERT_NEAR(begins[k * static_cast<std::size_t>(layers)], expected[k], 1e-9 * expected[k])
          << "stage " << stage << ", action " << k;
    }
  }
}

TEST(PipelineClock, AgreesWithEveryActionOfThePipelines) {
  for (const std::string name : {"gpipe", "1f1b", "interleaved", "zb_h1", "dualpipev"}) {
    for (const int stages : {2, 4, 8}) {
      for (const int rounds : {1, 2, 4}) {
        for (const int chunks : {1, 2, 4}) {
          if ((chunks > 1) != (name == "interleaved" || name == "dualpipev")) continue;
          if (chunks > 2 && name == "dualpipev") continue;
          const Case c = case_of(name, stages, rounds * stages, chunks);
          SCOPED_TRACE(testing::Message() << c << ", " << chunks << " chunks");
          for (const char* const system : {"h100_80g_nvl8", "a100_80g"}) {
            expect_clock(c, chunks, trained(c, hardware::find_system(system))->trace());
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// Where the textbook says that chunks shorten the step, they do so with priced messages, too,
// unless a message takes longer than the forward of a chunk.
TEST(PipelineClock, InterleavedIsNotSlowerThanOneFOneB) {
  int compared = 0;
  for (const char* const system :
       {"tests/hardware/h100_80g_nvl8.json", "tests/hardware/a100_80g.json"}) {
    for (const int stages : {2, 4, 8}) {
      for (const int rounds : {1, 2, 4}) {
        const auto traced = [&](const char* name, int chunks) {
          const Case c = case_of(name, stages, rounds * stages, chunks);
          return trained(c, hardware::find_system(system))->trace();
        };
        const trace::Trace plain = traced("1f1b", 1);
        for (const int chunks : {2, 4}) {
          const int layers = 4 / chunks;
          const double forward = layers * duration_of(plain, EventKind::forward);
          if (duration_of(plain, EventKind::send) > forward) continue;
          ++compared;
          EXPECT_LE(trace::summarize(traced("interleaved", chunks)).step_time().value,
                    trace::summarize(plain).step_time().value)
              << system << ", " << stages << " stages, " << rounds * stages << " microbatches, "
              << chunks << " chunks";
        }
      }
    }
  }
  EXPECT_GE(compared, 18);
}

}  // namespace
}  // namespace shiplap::strategy
