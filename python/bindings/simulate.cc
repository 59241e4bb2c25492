// Bindings of shiplap::sim and shiplap::run.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bind.h"
#include "plan.h"
#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/cost/placement.h"
#include "shiplap/hardware/system.h"
#include "shiplap/report/timed_plan.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/run/training_run.h"
#include "shiplap/sim/conditions.h"
#include "shiplap/sim/memory.h"
#include "shiplap/sim/replay.h"
#include "shiplap/trace/summary.h"
#include "trace.h"

namespace shiplap::python {
namespace {

using Diagnostics = std::vector<Diagnostic>;

using RankFactors = std::vector<std::pair<std::int64_t, double>>;

std::vector<sim::RankFactor> rank_factors(const RankFactors& given) {
  std::vector<sim::RankFactor> made;
  for (const auto& [rank, factor] : given) made.push_back({.rank = rank, .factor = factor});
  return made;
}

// The name of the machine, the trace, warnings, problems, and the conditions that are not the
// default.
std::tuple<std::string, SharedTrace, Diagnostics, Diagnostics, std::vector<std::string>> simulate(
    const SharedPlan& plan, const std::string& hardware, std::int64_t eager, bool fold,
    const std::string& links, const std::string& queues, const RankFactors& slow_ranks,
    const RankFactors& slow_links) {
  if (eager < 0) throw_negative("eager");
  const hardware::System system = hardware::find_system(hardware);
  sim::ReplayOptions options{.system = system,
                             .eager_limit = {eager},
                             .shares_links = links == "shared",
                             .one_queue = queues == "one",
                             .slow_ranks = {},
                             .slow_links = {},
                             .progress = {}};
  const std::int64_t ranks = plan->plan.mesh.ranks();
  sim::add_slow_ranks(rank_factors(slow_ranks), ranks, "slow_ranks", options);
  sim::add_slow_links(rank_factors(slow_links), ranks, "slow_links", options);
  const auto replay_plan = [plan, options](bool folds) {
    sim::ReplayOptions how = options;
    how.fold = folds;
    return with_source_locations(*plan, [&] { return sim::replay(plan->plan, how); });
  };
  sim::Replay replay = replay_plan(fold && plan->plan.mesh.ranks() > report::kMaxUnfoldedRanks);
  if (plan->source) {
    for (Diagnostic& problem : replay.problems) {
      problem = add_source_location(std::move(problem), *plan->source);
    }
  }
  Diagnostics warnings;
  if (std::optional<Diagnostic> warning = cost::tensor_parallel_warning(plan->plan.mesh, system)) {
    if (plan->source) warning->where.file = plan->source->file;
    warnings.push_back(*std::move(warning));
  }
  if (auto memory = sim::check_memory(trace::summarize(replay.trace), system)) {
    replay.problems.push_back(*std::move(memory));
  }
  std::vector<std::string> conditions = sim::describe_conditions(options);
  SharedTrace trace = std::make_shared<NamedTrace>(
      std::move(replay.trace), plan->name,
      std::vector{report::prediction_note(system.name, conditions, options.shares_links)},
      plan->plan.mesh, [replay_plan] { return replay_plan(false).trace; });
  return {system.name, std::move(trace), std::move(warnings), std::move(replay.problems),
          std::move(conditions)};
}

// Losses, seconds of each step, the number of weight elements that differ between ranks, and the
// trace of the last step.
std::tuple<std::vector<double>, std::vector<double>, std::int64_t, SharedTrace> run_plan(
    const SharedPlan& plan, std::int64_t steps, std::int64_t seed) {
  if (steps < 1) {
    throw_argument_error("steps", "expected 1 or more");
  }
  if (seed < 0) throw_negative("seed");
  run::TrainingRun result;
  with_source_locations(*plan, [&] {
    const run::TrainingRunOptions how{
        .training = run::training_for(plan->plan, static_cast<std::uint64_t>(seed)),
        .steps = steps,
        .traces = true};
    comm::run_ranks({.threads = static_cast<int>(plan->plan.mesh.ranks())},
                    [&](comm::Communicator& world) {
                      run::TrainingRun mine = run::run_training(world, plan->plan, how);
                      if (world.rank() == 0) result = std::move(mine);
                    });
  });
  std::vector<double> seconds;
  for (const Seconds time : result.times) seconds.push_back(time.value);
  SharedTrace trace = std::make_shared<NamedTrace>(std::move(result.trace), plan->name,
                                                   std::vector{report::measurement_note("threads")},
                                                   plan->plan.mesh);
  return {std::move(result.losses), std::move(seconds), result.unequal, std::move(trace)};
}

}  // namespace

void bind_simulate(nb::module_& m) {
  m.def("_simulate", &simulate, "plan"_a, "hardware"_a, "eager"_a, "fold"_a, "links"_a, "queues"_a,
        "slow_ranks"_a, "slow_links"_a, Released());
  m.def("_run", &run_plan, "plan"_a, "steps"_a, "seed"_a, Released());
  m.def("known_systems", &hardware::known_systems, "The built-in machine descriptions.");
}

}  // namespace shiplap::python
