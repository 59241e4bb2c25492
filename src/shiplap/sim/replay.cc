#include "shiplap/sim/replay.h"

#include <algorithm>
#include <utility>

#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/deadlock_internal.h"
#include "shiplap/sim/fit_internal.h"
#include "shiplap/sim/job_internal.h"

namespace shiplap::sim {
namespace {

// What `allocate` and `free` did, by time; at one time, as listed.
std::vector<trace::MemoryPoint> memory_of(const Job& job, const Clock& clock, std::int32_t rank) {
  struct Change {
    Seconds time;
    std::int32_t operation = 0;
    auto operator<=>(const Change&) const = default;
  };
  const Skeleton& skeleton = job.skeleton(rank);
  std::vector<Change> changes;
  for (std::int32_t k = 0; k < std::ssize(skeleton.steps); ++k) {
    const Place place{rank, k};
    const bool happened = clock.state(place) == Clock::State::complete;
    if (skeleton[k].act != Act::moment || skeleton[k].bytes == 0 || !happened) continue;
    changes.push_back({clock.start(place), k});
  }
  std::ranges::sort(changes);
  std::vector<trace::MemoryPoint> points;
  points.reserve(changes.size() + 1);
  points.push_back({.bytes = {skeleton.memory}});
  for (const Change& change : changes) {
    const Bytes grown{skeleton[change.operation].bytes};
    points.push_back({change.time, points.back().bytes + grown});
  }
  return points;
}

void drop_incomplete(Job& job, const Clock& clock) {
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    std::erase_if(job.trace.ranks[rank].events, [&](const trace::Event& event) {
      return clock.state({event.rank, event.operation}) != Clock::State::complete;
    });
  }
}

}  // namespace

Replay replay(const plan::Plan& plan, const ReplayOptions& options) {
  Job job = load(plan, options);
  Clock clock(job, options.eager_up_to);
  clock.run();

  Replay result{.end = clock.end(), .problems = misfit_problems(job, clock.misfits())};
  if (!clock.all_complete()) {
    std::ranges::move(deadlock_problems(job, clock), std::back_inserter(result.problems));
    drop_incomplete(job, clock);
  }
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    job.trace.ranks[rank].memory = memory_of(job, clock, static_cast<std::int32_t>(rank));
  }
  result.trace = std::move(job.trace);
  return result;
}

}  // namespace shiplap::sim
