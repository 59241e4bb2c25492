#include "shiplap/sim/replay.h"

#include <algorithm>
#include <utility>

#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/deadlock_report_internal.h"
#include "shiplap/sim/linked_internal.h"
#include "shiplap/sim/mismatch_internal.h"
#include "shiplap/sim/operation_cost_internal.h"

namespace shiplap::sim {
namespace {

// The memory of a rank over time, from `allocate` and `free`; at equal times, in program order.
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
    const OperationId id{rank, k};
    const bool happened = clock.state(id) == OperationState::complete;
    if (!plan::is_lifetime(rank_template[k].action) || rank_template[k].bytes == 0 || !happened)
      continue;
    changes.push_back({clock.start(id), k});
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
      return clock.state({event.rank, event.operation}) != OperationState::complete;
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
  Clock clock(linked, options.system, options.eager_limit);
  clock.run(options.progress);

  Replay result{.end = clock.end(), .problems = mismatch_problems(linked, clock.mismatches())};
  if (!clock.all_complete()) {
    std::ranges::move(deadlock_problems(linked, options.eager_limit),
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
