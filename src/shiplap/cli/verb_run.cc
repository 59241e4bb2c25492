// shiplap run: a strategy or a plan on real ranks, with real numbers.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/check_first.h"
#include "shiplap/cli/launch.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/comm/sockets/sockets.h"
#include "shiplap/report/text.h"
#include "shiplap/run/same_job.h"
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
  bool no_check = false;
  bool json = false;
};

StrategyDefaults defaults() {
  return {.ranks = 4, .layers = 4, .shape = {.hidden = 64, .block = 16, .datatype = DType::f32}};
}

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "FILE",
                  .help = "a plan of training, in f32; or else --strategy",
                  .example = "step.plan",
                  .values = Values::files,
                  .required = false},
                 options.file);
  declare_strategy(flags, options.strategy, defaults());
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "threads of this process; processes of an MPI job, which is started if "
                      "mpirun did not start this; or the processes that SHIPLAP_SOCKETS names "
                      "(threads)",
              .example = "mpi",
              .choices = {"threads", "mpi", "sockets"}},
             options.backend);
  flags.count({.name = "--steps", .help = "how often (5)", .example = "5"}, options.steps);
  flags.count({.name = "--seed", .help = "of weights, inputs and targets (1)", .example = "1"},
              options.seed);
  declare_files(flags, options.files, {.of = " of the last step", .as = " that can be run again"});
  flags.toggle({.name = "--no-check", .help = "do not check first that the plan is sound"},
               options.no_check);
  flags.toggle({.name = "--json", .help = "everything, for programs"}, options.json);
}

void check(const Options& options) {
  check_subject({.file = options.file,
                 .strategy = options.strategy,
                 .keeps_plan = options.files.plan.has_value(),
                 .verb = "run",
                 .for_example = "fsdp"});
  if (options.file == "-" && options.backend == "mpi") {
    refuse_flag("FILE", "standard input reaches only one rank", "give a file");
  }
  if (options.steps == 0) refuse_flag("--steps", "expected 1 or more");
}

// ---- running it

// Where the ranks are. Throws InputError if that is not where this process was started.
std::string backend_of(const Options& options) {
  const bool on_sockets = comm::socket_job().has_value();
  const bool on_mpi = !on_sockets && comm::launched_by();
  const std::string here = on_sockets ? "sockets" : on_mpi ? "mpi" : "threads";
  const std::string asked = options.backend.value_or(on_sockets ? "sockets" : "threads");
  if (asked == here || (asked == "mpi" && here == "threads")) return asked;
  if (asked == "sockets") {
    refuse_flag("--backend", "SHIPLAP_SOCKETS does not say where the ranks meet",
                "give every process SHIPLAP_SOCKETS=HOST:PORT, SHIPLAP_RANK and SHIPLAP_SIZE");
  }
  refuse_flag("--backend",
              fmt::format("this process is a rank of a job on {}", here == "mpi" ? "MPI" : here),
              fmt::format("say --backend {}", here));
}

// Steps are shown as they come: who ends a long run keeps what it has found out.
void show_begin(const Subject& subject, const std::string& backend, Context& context) {
  context.out.stream << report::painted(subject.title, report::kBold, context.out.colour)
                     << fmt::format(", run on {}\n", backend)
                     << (subject.detail.empty() ? "" : subject.detail + "\n")
                     << fmt::format("\n{:>6}  {:>9}  {:>9}\n", "step", "loss", "time");
}

void show_step(const run::TrainingStep& step, Context& context) {
  context.out.stream << fmt::format("{:>6}  {:>9.6f}  {:>9}\n", step.number, step.loss,
                                    to_string(step.time))
                     << std::flush;
}

// Nobody has checked the plan of a job that was started by hand: one rank does, for all.
bool is_sound_on_first(comm::Communicator& world, const Subject& subject, Context& context) {
  constexpr Seconds kCheckWithin{600};
  run::require_same_job(world, {run::plan_fact(subject.plan)});
  std::int32_t sound = 1;
  if (world.rank() == 0) {
    sound = checked_first(subject.plan, context, subject.text()) ? 1 : 0;
  }
  const Seconds timeout = world.timeout();
  world.set_timeout(std::max(timeout, kCheckWithin));
  world.broadcast(std::span(&sound, 1), 0);
  world.set_timeout(timeout);
  return sound == 1;
}

void tell(const Options& options, const Subject& subject, const std::string& where,
          const run::TrainingRun& outcome, Context& context) {
  write_files(options.files, subject,
              {.trace = outcome.trace,
               .title = subject.title,
               .assumed = {fmt::format(
                   "Measured on {}; waiting for other ranks counts as communication.", where)},
               .words = words_of("run", declare, options)});
  if (options.json) {
    Json losses = Json::array();
    Json times = Json::array();
    for (const double loss : outcome.losses) losses.push(loss);
    for (const Seconds time : outcome.times) times.push(time.value);
    Json json = Json::object({{"schema", "shiplap.run/1"},
                              {"name", subject.name},
                              {"backend", where},
                              {"ranks", subject.plan.mesh.ranks()}});
    json.set("loss", std::move(losses)).set("step_s", std::move(times));
    context.out.stream << to_text(json.set("unequal_weights", outcome.unequal)) << '\n';
    return;
  }
  if (outcome.unequal > 0) {
    context.out.stream << fmt::format("\n{} numbers of weights differ between ranks\n",
                                      with_separators(outcome.unequal));
  }
}

ExitCode act(const Options& options, Context& context) {
  check(options);
  check_writable(options.files.plan, "--plan");
  check_writable(options.files.report, "--report");
  check_writable(options.files.trace, "--trace");
  const std::string backend = backend_of(options);
  const bool is_rank = comm::launched_by() || comm::socket_job();
  const Subject subject = options.strategy.strategy ? subject_of(options.strategy, defaults())
                                                    : subject_of(options.file, context);
  const std::int64_t ranks = subject.plan.mesh.ranks();
  if (!is_rank && !options.no_check && !checked_first(subject.plan, context, subject.text())) {
    return ExitCode::no;
  }
  if (backend == "mpi" && !is_rank) {
    mark_checked(subject.plan);
    become_mpirun(ranks, words_of("run", declare, options), context.out.colour);
  }
  const bool first_checks = is_rank && !options.no_check && !is_marked_checked(subject.plan);
  bool sound = true;
  std::optional<run::TrainingRun> result;
  const auto on_ranks = [&] {
    run::TrainingRunOptions how{
        .training =
            run::training_for(subject.plan, static_cast<std::uint64_t>(options.seed.value_or(1))),
        .steps = options.steps.value_or(5),
        .traces = options.files.report || options.files.trace};
    if (!options.json) {
      how.on_step = [&](const run::TrainingStep& step) {
        if (step.number == 0) show_begin(subject, backend, context);
        show_step(step, context);
      };
    }
    comm::run_ranks({.threads = static_cast<int>(ranks)}, [&](comm::Communicator& world) {
      if (first_checks) sound = is_sound_on_first(world, subject, context);
      if (!sound) return;
      run::TrainingRun outcome = run::run_training(world, subject.plan, how);
      if (world.rank() == 0) result = std::move(outcome);
    });
  };
  try {
    subject.placing(on_ranks);
  } catch (const comm::Failure& failure) {
    context.err.stream << render(failure.diagnostic(), context.err.colour);
    return ExitCode::no;
  }
  if (!sound) return ExitCode::no;
  if (!result) return ExitCode::yes;  // another rank speaks
  tell(options, subject, backend, *result, context);
  const bool finite =
      std::ranges::all_of(result->losses, [](double l) { return std::isfinite(l); });
  if (!finite) context.err.stream << "the loss is no number any more\n";
  return finite && result->unequal == 0 ? ExitCode::yes : ExitCode::no;
}

}  // namespace

Verb run_verb() {
  return make_verb<Options>(
      {.name = "run",
       .summary = "train for real: a strategy or a plan on threads or MPI processes",
       .examples = {{"shiplap run --strategy fsdp --ranks 4", "on threads; prints loss per step"},
                    {"shiplap run --strategy fsdp --ranks 4 --backend mpi", "on MPI processes"},
                    {"shiplap run --strategy 1f1b --ranks 4 --report out.html",
                     "a picture of the last step"},
                    {"shiplap run --strategy ddp --ranks 2 --plan step.plan", "keep it as a plan"},
                    {"shiplap run step.plan --steps 10", "and run that again"}},
       .notes = "Layers are y = tanh(x) W in f32, trained by Adam on made-up data. Exit code 1: "
                "the run failed, or ranks ended with different weights."},
      {.declare = declare, .run = act});
}

}  // namespace shiplap::cli
