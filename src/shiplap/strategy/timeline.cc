#include <algorithm>
#include <limits>
#include <utility>

#include "shiplap/sim/replay.h"
#include "shiplap/strategy/rank_program_internal.h"
#include "shiplap/strategy/timeline_internal.h"

namespace shiplap::strategy {
namespace {

// Reading a batch, sums and copies are in the plan, and no calls that a rank logs.
bool is_logged(const Step& step) {
  if (step.what == Step::What::compute) return step.kind != trace::Kind::compute;
  return step.what == Step::What::communicate || step.what == Step::What::log;
}

// Keeps the events of calls, and says of those that were only logged of what they are. Returns when
// the rank had done, and waited for, all of them.
Seconds keep_calls(const Recording& recording, const std::vector<std::int32_t>& step_of,
                   std::vector<trace::Event>& events) {
  std::vector<bool> awaited(recording.steps.size(), false);
  for (const Step& step : recording.steps) {
    if (step.what == Step::What::wait) awaited[step.of] = true;
  }
  Seconds clock;
  std::size_t kept = 0;
  for (trace::Event& event : events) {
    const std::int32_t index = step_of[event.operation];
    const Step& step = recording.steps[index];
    const bool beside = step.async || step.stream != 0;
    if (!beside || awaited[index]) clock = std::max(clock, event.end());
    if (!is_logged(step)) continue;
    event.operation = -1;  // of a plan that nobody sees
    if (step.what == Step::What::log) {
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
  const LoweredRanks lowered = lower(dist, Lowered::to_be_timed);
  sim::Replay replay =
      sim::replay(lowered.plan, {.system = dist.world().system,
                                 .eager_up_to = dist.world().eager_up_to,
                                 .operations = std::numeric_limits<std::int64_t>::max(),
                                 .progress = dist.world().progress});
  Timeline timeline{.trace = std::move(replay.trace),
                    .end = replay.end,
                    .clock = std::vector<Seconds>(dist.models().size())};
  for (const LoweredRanks::Kind& kind : lowered.kinds) {
    const bool logs = std::ranges::any_of(
        kind.first.steps, [](const Step& step) { return step.what == Step::What::log; });
    for (const std::int32_t rank : kind.ranks) {
      std::vector<trace::Event>& events = timeline.trace.ranks[rank].events;
      timeline.clock[rank] =
          logs ? keep_calls(dist.models()[rank]->recording_so_far(), kind.step_of, events)
               : keep_calls(kind.first, kind.step_of, events);
    }
  }
  return timeline;
}

}  // namespace shiplap::strategy
