#include "shiplap/sim/replay.h"

#include <algorithm>
#include <utility>

#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/deadlock_internal.h"
#include "shiplap/sim/fit_internal.h"
#include "shiplap/sim/linked_internal.h"
#include "shiplap/sim/operation_cost_internal.h"

namespace shiplap::sim {
namespace {

// What `allocate` and `free` did, by time; at one time, as listed.
std::vector<trace::MemoryPoint> memory_of(const LinkedProgram& linked, const Clock& clock,
                                          std::int32_t rank) {
  struct Change {
    Seconds time;
    std::int32_t operation = 0;
    auto operator<=>(const Change&) const = default;
  };
  const RankTemplate& rank_template = linked.template_of(rank);
  std::vector<Change> changes;
  for (std::int32_t k = 0; k < std::ssize(rank_template.steps); ++k) {
    const Place place{rank, k};
    const bool happened = clock.state(place) == Clock::State::complete;
    if (!plan::is_lifetime(rank_template[k].act) || rank_template[k].bytes == 0 || !happened)
      continue;
    changes.push_back({clock.start(place), k});
  }
  std::ranges::sort(changes);
  std::vector<trace::MemoryPoint> points;
  points.reserve(changes.size() + 1);
  points.push_back({.bytes = {rank_template.memory}});
  for (const Change& change : changes) {
    const Bytes grown{rank_template[change.operation].bytes};
    points.push_back({change.time, points.back().bytes + grown});
  }
  return points;
}

void drop_incomplete(LinkedProgram& linked, const Clock& clock) {
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    std::erase_if(linked.trace.ranks[rank].events, [&](const trace::Event& event) {
      return clock.state({event.rank, event.operation}) != Clock::State::complete;
    });
  }
}

}  // namespace

Replay replay(const plan::Plan& plan, const ReplayOptions& options) {
  LinkedProgram linked =
      plan::link(plan, {.operations = options.operations,
                        .iterations = options.iterations,
                        .cost =
                            [&](const plan::RankProgram& program, const plan::flat::Operation& op) {
                              return operation_cost(options.system, program, op);
                            },
                        .progress = options.progress});
  Clock clock(linked, options.system, options.eager_up_to);
  clock.run(options.progress);

  Replay result{.end = clock.end(), .problems = misfit_problems(linked, clock.misfits())};
  if (!clock.all_complete()) {
    std::ranges::move(deadlock_problems(linked, options.eager_up_to),
                      std::back_inserter(result.problems));
    drop_incomplete(linked, clock);
  }
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    linked.trace.ranks[rank].memory = memory_of(linked, clock, static_cast<std::int32_t>(rank));
  }
  result.trace = std::move(linked.trace);
  return result;
}

}  // namespace shiplap::sim
