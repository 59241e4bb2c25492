#include "shiplap/sim/replay.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "shiplap/base/error.h"
#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/deadlock_report_internal.h"
#include "shiplap/sim/folding_internal.h"
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
    if (!linked.is_linked(rank)) continue;
    std::erase_if(linked.trace.ranks[rank].events, [&](const trace::Event& event) {
      return clock.state({event.rank, event.operation}) != OperationState::complete;
    });
  }
}

// By rank.
std::vector<double> slowness_of(const plan::Plan& plan, const ReplayOptions& options) {
  std::vector<double> slowness(plan.mesh.ranks(), 1);
  for (const SlowRank& slow : options.slow_ranks) {
    slowness.at(static_cast<std::size_t>(slow.rank)) = slow.factor;
  }
  return slowness;
}

// Throws plan::Asymmetric if ranks differ from their representative.
Replay replay(const plan::Plan& plan, const ReplayOptions& options,
              const plan::Symmetry& symmetry) {
  const std::vector<double> slowness = slowness_of(plan, options);
  const auto cost = [&](const plan::RankProgram& program, const plan::flat::Operation& op) {
    const double seconds = operation_cost(options.system, program, op);
    const bool communicates = std::holds_alternative<plan::Exchange>(op.source->action);
    return communicates ? seconds : seconds * slowness[program.rank.index()];
  };
  LinkedProgram linked = plan::link(plan, {.operations = options.operations,
                                           .iterations = options.iterations,
                                           .cost = cost,
                                           .symmetry = symmetry,
                                           .progress = options.progress});
  throw_if_misplaced(linked, options.system);
  Clock clock(linked, options);
  clock.run(options.progress);

  Replay result{.end = clock.end(), .problems = mismatch_problems(linked, clock.mismatches())};
  if (!clock.all_complete()) {
    std::ranges::move(deadlock_problems(linked, options.eager_limit, clock),
                      std::back_inserter(result.problems));
    drop_incomplete(linked, clock);
  }
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    if (!linked.is_linked(rank)) continue;
    linked.trace.ranks[rank].memory = memory_of(linked, clock, static_cast<std::int32_t>(rank));
  }
  result.trace = std::move(linked.trace);
  if (symmetry.axes.empty()) return result;
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    result.trace.representatives.push_back(symmetry.representative(rank));
  }
  return result;
}

// Returns none if no two ranks are alike.
std::optional<Replay> replay_folded(const plan::Plan& plan, const ReplayOptions& options) {
  plan::Symmetry symmetry = plan::find_symmetry(plan, {.same_work = true});
  while (!symmetry.axes.empty()) {
    try {
      return replay(plan, options, symmetry);
    } catch (const plan::Asymmetric& unlike) {
      if (unlike.axis.exists()) symmetry.drop(unlike.axis);
      if (!unlike.axis.exists()) symmetry.drop_smallest();
    }
  }
  return std::nullopt;
}

bool is_too_large(const InputError& error) { return error.diagnostics().front().code == "D632"; }

// Beyond that, problems are those of representatives.
constexpr std::int64_t kMaxOperationsForDetail = 20'000'000;

}  // namespace

Replay replay(const plan::Plan& plan, const ReplayOptions& options) {
  const bool is_uneven = !options.slow_ranks.empty() || !options.slow_links.empty();
  if (!options.fold || is_uneven) return replay(plan, options, {});
  std::optional<Replay> folded = replay_folded(plan, options);
  if (folded && folded->problems.empty()) return *std::move(folded);
  if (!folded) return replay(plan, options, {});
  ReplayOptions detailed = options;
  detailed.operations = std::min(options.operations, kMaxOperationsForDetail);
  try {
    return replay(plan, detailed, {});
  } catch (const InputError& error) {
    if (!is_too_large(error)) throw;
    return *std::move(folded);
  }
}

}  // namespace shiplap::sim
