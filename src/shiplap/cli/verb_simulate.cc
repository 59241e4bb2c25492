// shiplap simulate: runs a strategy or a plan in virtual time.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/precheck.h"
#include "shiplap/cli/replay_flags.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/cost/placement.h"
#include "shiplap/report/timed_plan.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/sim/conditions.h"
#include "shiplap/sim/memory.h"
#include "shiplap/sim/replay.h"
#include "shiplap/trace/summary.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  StrategyFlags strategy;
  ScheduleFlags schedule;
  std::optional<std::string> hardware;
  std::optional<std::int64_t> eager;
  ReplayFlags replay;
  TraceFiles files;
  bool no_check = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  declare_subject(flags, options.file, options.strategy, options.schedule);
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("hardware: a file, or one of {} (h100_80g_nvl8)",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8",
              .values = Values::files,
              .suggestions = hardware::known_systems()},
             options.hardware);
  flags.count({.name = "--eager-limit",
               .value = "BYTES",
               .help = "messages of up to this size are sent eagerly (0)",
               .example = "65536",
               .old_name = "--eager"},
              options.eager);
  declare_replay(flags, options.replay);
  declare_files(flags, options.files, {.what = "strategy or the schedule"});
  flags.toggle({.name = "--no-check", .help = "do not check the plan first"}, options.no_check);
  flags.toggle({.name = "--json", .help = "print everything as JSON"}, options.json);
}

std::vector<std::string> command_of(Options options) {
  options.json = false;  // the report is the same
  return to_arguments("simulate", declare, options);
}

report::TraceScale scale_of(const Subject& subject, const hardware::System& system) {
  if (subject.tokens == 0) return {};
  const hardware::Processor::Speed* speed = system.matrix.usable(subject.type);
  return {.capacity = system.mem1.capacity,
          .peak = speed != nullptr ? speed->peak : FlopRate{},
          .tokens = subject.tokens,
          .model_flop = subject.model_flop};
}

std::vector<Diagnostic> placement_warnings(const Options& options, const Subject& subject,
                                           const hardware::System& system) {
  std::optional<Diagnostic> warning = cost::tensor_parallel_warning(subject.plan.mesh, system);
  if (!warning) return {};
  if (subject.source) warning->where.file = subject.source->file;
  if (options.strategy.mesh) warning->where.flag = "--mesh";
  return {*std::move(warning)};
}

// A recording of a script knows its communication only.
bool is_recording(const plan::Plan& plan) { return !plan.declares_values && !plan.sources.empty(); }

// The title also has the mesh of a strategy.
report::SimulatedPlan unsimulated(const Subject& subject, const hardware::System& system) {
  report::SimulatedPlan found{.plan = subject.timed(system.name),
                              .scale = scale_of(subject, system),
                              .summary = {},
                              .warnings = {},
                              .problems = {},
                              .memory = {},
                              .conditions = {}};
  if (!subject.mesh.empty()) found.plan.title += fmt::format(" ({})", subject.mesh);
  if (is_recording(subject.plan)) {
    found.plan.detail = "recorded: communication alone, without computation";
  }
  return found;
}

void simulate(const Subject& subject, const sim::ReplayOptions& options,
              report::SimulatedPlan& found) {
  sim::Replay replay =
      subject.with_source_locations([&] { return sim::replay(subject.plan, options); });
  for (Diagnostic& problem : replay.problems) {
    if (subject.source) problem = add_source_location(std::move(problem), *subject.source);
  }
  found.plan.trace = std::move(replay.trace);
  found.problems = std::move(replay.problems);
  found.summary = trace::summarize(found.plan.trace);
  found.memory = sim::check_memory(found.summary, options.system);
}

// A trace file has the events of every rank, and the report of few ranks draws each, with its
// samples.
bool is_foldable(const plan::Plan& plan, const Options& options) {
  return !options.files.trace && plan.mesh.ranks() > report::kMaxUnfoldedRanks;
}

ExitCode run_verb(const Options& options, Context& context) {
  const SubjectFlags input{.file = options.file,
                           .strategy = &options.strategy,
                           .schedule = &options.schedule,
                           .keeps_plan = options.files.plan.has_value(),
                           .verb = "simulate",
                           .for_example = "1f1b"};
  check_subject(input);
  check_outputs(outputs_of(options.files), options.json, input.input_file());
  const Context answer = answer_context(outputs_of(options.files), context);
  strategy::World world;
  world.system = hardware::find_system(options.hardware.value_or("h100_80g_nvl8"));
  world.eager_limit = {options.eager.value_or(0)};
  world.progress = context.progress;
  const Subject subject = subject_of(input, context, {}, world);
  report::SimulatedPlan found = unsimulated(subject, world.system);
  found.warnings = placement_warnings(options, subject, world.system);
  context.err.stream << render(found.warnings, context.err.colour);
  std::optional<Bytes> eager;
  if (options.eager) eager = world.eager_limit;
  sim::ReplayOptions replay{.system = world.system,
                            .eager_limit = world.eager_limit,
                            .fold = is_foldable(subject.plan, options),
                            .slow_ranks = {},
                            .slow_links = {},
                            .progress = context.progress};
  set_replay(options.replay, subject.plan.mesh.ranks(), replay);
  const bool sound = options.no_check || precheck(subject.plan, context, subject.text(), eager);
  found.conditions = sim::describe_conditions(replay);
  found.shares_links = replay.shares_links;
  simulate(subject, replay, found);
  context.err.stream << report::folding_text(found.plan.trace);
  const auto page = [&] {
    return report::simulation_page(found, shell_command(command_of(options)));
  };
  write_files(options.files, subject.plan, found.plan, page, context);
  if (!options.json) {
    context.err.stream << render(found.problems, context.err.colour);
    if (found.memory) context.err.stream << render(*found.memory, context.err.colour);
  }
  answer.out.stream << (options.json ? to_text(report::simulation_json(found)) + "\n"
                                     : report::simulation_text(found, answer.text_style()));
  return sound && found.good() ? ExitCode::yes : ExitCode::no;
}

}  // namespace

Verb simulate_verb() {
  return make_verb<Options>(
      {.name = "simulate",
       .summary = "predict time and memory of a strategy or a plan, in virtual time",
       .examples =
           {{"shiplap simulate --strategy 1f1b --ranks 8 --global-batch 32",
             "a pipeline: step time, bubble, peak memory"},
            {"shiplap simulate --strategy fsdp --ranks 64 --hardware b200 --report out.html",
             "HTML report"},
            {"shiplap simulate --strategy hybrid --mesh dp=2,pp=4,tp=8 --model llama3-8b",
             "a known model"},
            {"shiplap simulate --model llama3-70b --from megatron '--tensor-model-parallel-size 8 "
             "--pipeline-model-parallel-size 4 --sequence-parallel --global-batch-size 128' "
             "--ranks 64",
             "your model and the flags you have"},
            {"shiplap simulate --strategy ddp --ranks 8 --plan ddp.plan",
             "also write it as a plan"},
            {"shiplap simulate --schedule schedule.csv --costs F=10,B=20 --report out.html",
             "a PyTorch pipeline schedule: bubble and picture"},
            {"shiplap simulate ddp.plan --trace out.pftrace", "any plan; a trace for Perfetto"}},
       .notes = "Exit code 1: the plan cannot be executed (a deadlock, mismatched operations), "
                "does not fit into the memory of the device (D635), or is not sound (see `shiplap "
                "check`)."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
