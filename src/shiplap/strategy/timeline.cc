#include <algorithm>
#include <limits>
#include <utility>

#include "shiplap/sim/replay.h"
#include "shiplap/strategy/rank_program_internal.h"
#include "shiplap/strategy/timeline_internal.h"

namespace shiplap::strategy {
namespace {

// Reading a batch, sums and copies are operations of the plan, but not calls in the log.
bool is_logged(const Step& step) {
  if (step.type == StepType::compute) return step.kind != trace::EventKind::compute;
  return step.type == StepType::communicate || step.type == StepType::log;
}

// Keeps only the events of calls, and restores kind, layer and samples of those that were only
// logged. Returns the end of the last call, including awaited communication.
Seconds keep_calls(const Recording& recording, const std::vector<std::int32_t>& step_of,
                   std::vector<trace::Event>& events) {
  std::vector<bool> awaited(recording.steps.size(), false);
  for (const Step& step : recording.steps) {
    if (step.type == StepType::wait) awaited[step.comm_step] = true;
  }
  Seconds clock;
  std::size_t kept = 0;
  std::int32_t part_of = -1;  // the step of the parts since `begin`
  Seconds begin;
  for (trace::Event& event : events) {
    const std::int32_t index = step_of[event.operation];
    const Step& step = recording.steps[index];
    const bool non_blocking = step.async || step.stream != 0;
    if (!non_blocking || awaited[index]) clock = std::max(clock, event.end());
    if (!is_logged(step)) continue;
    // The parts of a layer are one call, whose values only the last one has.
    if (step.parts >= 0 && event.kind == trace::EventKind::compute) {
      if (part_of != index) begin = event.time;
      part_of = index;
      continue;
    }
    if (part_of == index) {
      event.duration = event.end() - begin;
      event.time = begin;
    }
    event.operation = -1;  // refers to the internal plan
    if (step.type == StepType::log) {
      const auto& what = std::get<Activation>(recording.values[step.reads[0]].value);
      event.kind = step.kind;
      event.layer = what.layer;
      event.samples = what.samples;
    }
    events[kept++] = std::move(event);
  }
  events.resize(kept);
  return clock;
}

}  // namespace

Timeline replay(const Dist& dist) {
  const LoweredRanks lowered = lower(dist, LoweringPurpose::simulation);
  sim::Replay replay =
      sim::replay(lowered.plan, {.system = dist.world().system,
                                 .eager_limit = dist.world().eager_limit,
                                 .operations = std::numeric_limits<std::int64_t>::max(),
                                 .progress = dist.world().progress});
  Timeline timeline{.trace = std::move(replay.trace),
                    .end = replay.end,
                    .clock = std::vector<Seconds>(dist.models().size())};
  for (const RankClass& rank_class : lowered.classes) {
    const bool logs = std::ranges::any_of(
        rank_class.first.steps, [](const Step& step) { return step.type == StepType::log; });
    for (const std::int32_t rank : rank_class.ranks) {
      std::vector<trace::Event>& events = timeline.trace.ranks[rank].events;
      timeline.clock[rank] =
          logs ? keep_calls(dist.models()[rank]->recording_so_far(), rank_class.step_of, events)
               : keep_calls(rank_class.first, rank_class.step_of, events);
    }
  }
  return timeline;
}

}  // namespace shiplap::strategy
