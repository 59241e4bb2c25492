#include "shiplap/run/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>

#include "shiplap/plan/expand.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {
namespace {

// The number of elements of the unsharded value, for one sample.
double whole_size(const plan::RankProgram& program, const plan::flat::Access& access) {
  const plan::Tensor& tensor = program.plan->tensors[access.value.tensor];
  double size = static_cast<double>(program.bytes_of(access.region)) / sizeof(float);
  for (const plan::flat::Run& run : program.runs_of(access.value)) {
    if (tensor.in_sum(run.dimension)) continue;
    const plan::Dimension& dimension = tensor.dimension(run.dimension);
    const bool sample = dimension.name == "sample";
    size *= (sample ? 1.0 : static_cast<double>(dimension.size)) / static_cast<double>(run.count);
  }
  return size;
}

void find_sizes(const plan::Plan& plan, TrainingOptions& training) {
  if (!plan.declares_values) return;
  bool hidden = false;
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const plan::RankProgram program = plan::expand(plan, Rank(rank));
    double activation = 0;
    for (const plan::flat::Access& access : program.accesses) {
      const plan::Tensor& tensor = plan.tensors[access.value.tensor];
      if (tensor.kind == plan::kWeight && !hidden) {
        training.hidden = std::llround(std::sqrt(whole_size(program, access)));
        hidden = true;
      }
      if (tensor.kind == "Activation" && activation == 0) {
        activation = whole_size(program, access);
      }
    }
    if (hidden && activation > 0) {
      training.block = std::llround(activation / static_cast<double>(training.hidden));
      return;
    }
  }
}

}  // namespace

bool TrainingRun::has_finite_losses() const {
  return std::ranges::all_of(losses, [](double l) { return std::isfinite(l); });
}

TrainingOptions training_for(const plan::Plan& plan, std::uint64_t seed) {
  TrainingOptions training{.seed = seed};
  find_sizes(plan, training);
  training.learning_rate = 0.64 / static_cast<double>(std::max<std::int64_t>(64, training.hidden));
  return training;
}

namespace {

std::vector<JobSetting> settings_of(const TrainingRunOptions& options) {
  const TrainingOptions& training = options.training;
  return {{"the seed", fmt::format("{}", training.seed)},
          {"the number of steps", fmt::format("{}", options.steps)},
          {"the sizes of layers", fmt::format("{} samples of {}", training.block, training.hidden)},
          {"the optimizer", fmt::format("{} {} {} {}", training.learning_rate, training.beta1,
                                        training.beta2, training.epsilon)},
          {"whether a trace is taken", options.traces ? "yes" : "no"}};
}

std::filesystem::path dump_file(const TrainingRunOptions& options, int rank) {
  return std::filesystem::path(options.dump_folder) / fmt::format("rank_{}.json", rank);
}

// Those of an earlier run: a rank that is killed writes none.
void remove_dump(const TrainingRunOptions& options, int rank) {
  std::error_code ignored;
  std::filesystem::remove(dump_file(options, rank), ignored);
}

// In the middle of a failure, a dump that cannot be written is not worth another exception.
void dump(const Executor& executor, const TrainingRunOptions& options) {
  try {
    std::ofstream(dump_file(options, executor.program().rank.value))
        << executor.flight_record(options.plan_file);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace

TrainingRun run_training(comm::Communicator& world, const plan::Plan& plan,
                         const TrainingRunOptions& options) {
  TrainingKernels kernels(options.training);
  KernelTable table;
  kernels.bind(table);
  Executor executor(plan, world, table,
                    {.traces = options.traces, .job_settings = settings_of(options)});
  TrainingRun run;
  StepResult last;
  const auto run_step = [&](std::int64_t step) {
    last = executor.step();
    run.losses.push_back(kernels.mean_loss(world));
    double slowest = last.duration.value;
    world.all_reduce(std::span(&slowest, 1), ReduceOp::max);
    run.times.push_back({slowest});
    if (world.rank() == 0 && options.on_step) {
      options.on_step({.number = step, .loss = run.losses.back(), .time = run.times.back()});
    }
  };
  const bool dumps = !options.dump_folder.empty();
  if (dumps) remove_dump(options, world.rank());
  try {
    for (std::int64_t step = 0; step < options.steps; ++step) run_step(step);
  } catch (...) {
    if (dumps) dump(executor, options);
    throw;
  }
  run.unequal = gather_weights(world, executor, options.training).unequal;
  if (options.traces) run.trace = gather_trace(world, plan, last);
  return run;
}

}  // namespace shiplap::run
