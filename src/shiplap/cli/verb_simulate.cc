// shiplap simulate: runs a strategy or a plan in virtual time.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/precheck.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/cost/placement.h"
#include "shiplap/report/text.h"
#include "shiplap/report/trace.h"
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
  TraceFiles files;
  bool no_check = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "FILE",
                  .help = "a plan file; alternatives: --strategy, --schedule, --from",
                  .example = "step.plan",
                  .values = Values::files,
                  .required = false},
                 options.file);
  declare_strategy(flags, options.strategy, {});
  declare_schedule(flags, options.schedule);
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
  declare_files(flags, options.files, {.what = "strategy or the schedule"});
  flags.toggle({.name = "--no-check", .help = "do not check the plan first"}, options.no_check);
  flags.toggle({.name = "--json", .help = "print everything as JSON"}, options.json);
}

std::vector<std::string> command_of(Options options) {
  options.json = false;  // the report is the same
  return to_arguments("simulate", declare, options);
}

// The result of a simulation.
struct Simulated {
  Subject subject;
  hardware::System system;
  std::vector<Diagnostic> warnings;
  sim::Replay replay;
  trace::Summary summary;
  std::optional<Diagnostic> memory;  // it does not fit
};

report::TraceScale scale_of(const Simulated& found) {
  if (found.subject.tokens == 0) return {};
  const hardware::Processor::Speed* speed = found.system.matrix.usable(found.subject.type);
  return {.capacity = found.system.mem1.capacity,
          .peak = speed != nullptr ? speed->peak : FlopRate{},
          .tokens = found.subject.tokens,
          .model_flop = found.subject.model_flop};
}

Json to_json(const Simulated& found) {
  Json json = Json::object({{"schema", "shiplap.simulate/1"},
                            {"name", found.subject.name},
                            {"hardware", found.system.name}});
  const Json of_trace = report::trace_to_json(found.replay.trace, found.summary, scale_of(found));
  for (const auto& [key, value] : of_trace.as_object()) json.set(key, value);
  json.set("warnings", shiplap::to_json(found.warnings));
  std::vector<Diagnostic> problems = found.replay.problems;
  if (found.memory) problems.push_back(*found.memory);
  return json.set("problems", shiplap::to_json(problems));
}

std::string to_text(const Simulated& found, const std::string& title,
                    const report::TextStyle& style) {
  const std::string detail = found.subject.detail.empty() ? "" : found.subject.detail + "\n";
  return report::styled(title, report::kBold, style.colour) +
         fmt::format(", predicted for {}\n{}", found.system.name, detail) +
         (found.replay.problems.empty()
              ? "\n" + report::show_trace(found.replay.trace, found.summary, style,
                                          found.subject.plan.mesh, scale_of(found))
              : "cannot be executed\n");
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

// A trace file has the events of every rank, and the report of few ranks draws each, with its
// samples.
bool is_foldable(const plan::Plan& plan, const Options& options) {
  constexpr std::int64_t kMaxUnfoldedRanks = 16;
  return !options.files.trace && plan.mesh.ranks() > kMaxUnfoldedRanks;
}

// "simulated 4 of 64 ranks; the others are alike".
std::string describe_folding(const trace::Trace& trace) {
  if (trace.representatives.empty()) return "";
  std::int64_t own = 0;
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    own += trace.is_representative(rank);
  return fmt::format("simulated {} of {} ranks; the others are alike\n", with_separators(own),
                     with_separators(std::ssize(trace.ranks)));
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
  Context answer = answer_context(outputs_of(options.files), context);
  strategy::World world;
  world.system = hardware::find_system(options.hardware.value_or("h100_80g_nvl8"));
  world.eager_limit = {options.eager.value_or(0)};
  world.progress = context.progress;
  Simulated found{.subject = subject_of(input, context, {}, world),
                  .system = world.system,
                  .warnings = {},
                  .replay = {},
                  .summary = {},
                  .memory = {}};
  if (is_recording(found.subject.plan)) {
    found.subject.detail = "recorded: communication alone, without computation";
  }
  const Subject& subject = found.subject;
  found.warnings = placement_warnings(options, subject, world.system);
  context.err.stream << render(found.warnings, context.err.colour);
  std::optional<Bytes> eager;
  if (options.eager) eager = world.eager_limit;
  const bool sound = options.no_check || precheck(subject.plan, context, subject.text(), eager);
  found.replay = subject.with_source_locations([&] {
    return sim::replay(subject.plan, {.system = world.system,
                                      .eager_limit = world.eager_limit,
                                      .fold = is_foldable(subject.plan, options),
                                      .progress = context.progress});
  });
  for (Diagnostic& problem : found.replay.problems) {
    if (subject.source) problem = add_source_location(std::move(problem), *subject.source);
  }
  context.err.stream << describe_folding(found.replay.trace);
  found.summary = trace::summarize(found.replay.trace);
  found.memory = sim::check_memory(found.summary, world.system);
  std::vector<std::string> assumed;
  if (!subject.detail.empty()) assumed.push_back(subject.detail + ".");
  assumed.push_back(
      fmt::format("Predicted for {}, without contention between transfers.", found.system.name));
  const std::string title =
      subject.mesh.empty() ? subject.title : fmt::format("{} ({})", subject.title, subject.mesh);
  write_files(options.files, subject,
              {.trace = found.replay.trace,
               .title = title,
               .assumed = assumed,
               .arguments = command_of(options),
               .scale = scale_of(found)},
              context);
  if (!options.json) {
    context.err.stream << render(found.replay.problems, context.err.colour);
    if (found.memory) context.err.stream << render(*found.memory, context.err.colour);
  }
  answer.out.stream << (options.json ? to_text(to_json(found)) + "\n"
                                     : to_text(found, title, answer.text_style()));
  const bool fits = !found.memory;
  return sound && fits && found.replay.problems.empty() ? ExitCode::yes : ExitCode::no;
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
