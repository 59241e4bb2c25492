// shiplap run: runs a strategy or a plan on real ranks with real data.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/precheck.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/report/timed_plan.h"
#include "shiplap/run/job_consistency.h"
#include "shiplap/run/training_run.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  StrategyFlags strategy;
  std::optional<std::string> backend;
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> seed;
  TraceFiles files;
  std::optional<std::string> dump;
  bool no_check = false;
  bool json = false;
};

StrategyDefaults defaults() {
  return {.ranks = 4,
          .layers = 4,
          .shape = {.hidden = 64, .block = 16, .datatype = DType::f32},
          .takes_models = false};
}

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "FILE",
                  .help = "a training plan in f32; alternative: --strategy",
                  .example = "step.plan",
                  .values = Values::files,
                  .required = false},
                 options.file);
  declare_strategy(flags, options.strategy, defaults());
  declare_backend(flags, options.backend);
  flags.count({.name = "--steps", .help = "training steps (5)", .example = "5"}, options.steps);
  flags.count(
      {.name = "--seed", .help = "random seed of weights, inputs and targets (1)", .example = "1"},
      options.seed);
  declare_files(flags, options.files, {.of = " of the last step", .as = " that can be run again"});
  flags.text({.name = "--dump",
              .value = "FOLDER",
              .help = "if a step fails, write the calls of every rank to this folder, for `shiplap "
                      "postmortem`",
              .example = "hang",
              .values = Values::files},
             options.dump);
  flags.toggle({.name = "--no-check", .help = "do not check the plan first"}, options.no_check);
  flags.toggle({.name = "--json", .help = "print everything as JSON"}, options.json);
}

SubjectFlags subject_flags(const Options& options) {
  return {.file = options.file,
          .strategy = &options.strategy,
          .keeps_plan = options.files.plan.has_value(),
          .verb = "run",
          .for_example = "fsdp"};
}

// Before the run, not after its failure.
void create_dump_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return;
  throw_flag_error("--dump", fmt::format("cannot create the folder: {}", error.message()),
                   "name a folder that can be written");
}

void check(const Options& options) {
  check_subject(subject_flags(options));
  if (options.file == "-" && options.backend == "mpi") {
    throw_flag_error("FILE", "standard input is available on one rank only", "use a file");
  }
  if (options.steps == 0) throw_flag_error("--steps", "expected 1 or more");
  if (options.dump) create_dump_folder(*options.dump);
}

// ---- running it

// The plan of a job that was started by hand is unchecked: rank 0 checks it for all ranks.
bool precheck_on_rank_0(comm::Communicator& world, const Subject& subject, Context& context) {
  constexpr Seconds kCheckWithin{600};
  run::check_job_consistency(world, {run::plan_setting(subject.plan)});
  std::int32_t sound = 1;
  if (world.rank() == 0) {
    sound = precheck(subject.plan, context, subject.text()) ? 1 : 0;
  }
  const Seconds timeout = world.timeout();
  world.set_timeout(std::max(timeout, kCheckWithin));
  world.broadcast(std::span(&sound, 1), 0);
  world.set_timeout(timeout);
  return sound == 1;
}

void print_result(const Options& options, const Subject& subject, const report::ExecutedPlan& found,
                  Context& context) {
  const auto page = [&] {
    return report::execution_page(found, shell_command(to_arguments("run", declare, options)));
  };
  write_files(options.files, subject.plan, found.plan, page, context);
  const Context answer = answer_context(outputs_of(options.files), context);
  answer.out.stream << (options.json ? to_text(report::execution_json(found)) + "\n"
                                     : report::execution_end(found));
}

ExitCode run_plan(const Options& options, Context& context) {
  check(options);
  check_outputs(outputs_of(options.files), options.json);
  Context answer = answer_context(outputs_of(options.files), context);
  const std::string backend = backend_of(options.backend);
  const bool is_rank = cli::is_rank();
  const Subject subject = subject_of(subject_flags(options), context, defaults());
  report::TimedPlan timed = subject.timed(backend);
  const std::int64_t ranks = subject.plan.mesh.ranks();
  if (!is_rank && !options.no_check && !precheck(subject.plan, context, subject.text())) {
    return ExitCode::no;
  }
  if (backend == "mpi" && !is_rank) {
    mark_checked(subject.plan);
    exec_mpirun(ranks, to_arguments("run", declare, options), context.out.colour);
  }
  const bool rank_0_checks = is_rank && !options.no_check && !is_marked_checked(subject.plan);
  bool sound = true;
  std::optional<run::TrainingRun> result;
  const auto on_ranks = [&] {
    run::TrainingRunOptions how{
        .training =
            run::training_for(subject.plan, static_cast<std::uint64_t>(options.seed.value_or(1))),
        .steps = options.steps.value_or(5),
        .traces = options.files.report || options.files.trace,
        .dump_folder = options.dump.value_or(""),
        .plan_file = options.file.empty() ? "plan" : options.file};
    if (!options.json) {
      how.on_step = [&](const run::TrainingStep& step) {
        if (step.number == 0)
          answer.out.stream << report::execution_head(timed, answer.text_style());
        // An interrupted run keeps its results.
        answer.out.stream << report::execution_step(step.number, step.loss, step.time)
                          << std::flush;
      };
    }
    comm::run_ranks({.threads = static_cast<int>(ranks)}, [&](comm::Communicator& world) {
      if (rank_0_checks) sound = precheck_on_rank_0(world, subject, context);
      if (!sound) return;
      run::TrainingRun outcome = run::run_training(world, subject.plan, how);
      if (world.rank() == 0) result = std::move(outcome);
    });
  };
  try {
    subject.with_source_locations(on_ranks);
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    if (options.dump && !is_rank) suggest_next("shiplap postmortem " + *options.dump, context);
    return ExitCode::no;
  }
  if (!sound) return ExitCode::no;
  if (!result) return ExitCode::yes;  // rank 0 prints the result
  timed.trace = std::move(result->trace);
  print_result(options, subject,
               {.plan = std::move(timed),
                .losses = result->losses,
                .times = result->times,
                .unequal = result->unequal},
               context);
  if (!result->has_finite_losses()) {
    context.err.stream << "the loss is not finite (NaN or infinity)\n";
  }
  return result->good() ? ExitCode::yes : ExitCode::no;
}

}  // namespace

Verb run_verb() {
  return make_verb<Options>(
      {.name = "run",
       .summary = "run a strategy or a plan: training on threads, MPI processes or sockets",
       .examples = {{"shiplap run --strategy fsdp --ranks 4",
                     "on threads; prints the loss of each step"},
                    {"shiplap run --strategy fsdp --ranks 4 --backend mpi", "on MPI processes"},
                    {"shiplap run --strategy 1f1b --ranks 4 --report out.html",
                     "HTML report of the last step"},
                    {"shiplap run --strategy ddp --ranks 2 --plan step.plan",
                     "also write it as a plan"},
                    {"shiplap run step.plan --steps 10", "run that plan again"}},
       .notes =
           "Layers are y = tanh(x) W in f32, trained with Adam on synthetic data. Exit code 1: "
           "the run failed, or ranks ended with different weights."},
      {.declare = declare, .run = run_plan});
}

}  // namespace shiplap::cli
