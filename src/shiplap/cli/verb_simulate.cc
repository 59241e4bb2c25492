// shiplap simulate: a strategy or a plan in virtual time.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cli/check_first.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/cli/table.h"
#include "shiplap/cli/trace_report.h"
#include "shiplap/cli/trace_show.h"
#include "shiplap/cli/verb.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/page.h"
#include "shiplap/sim/replay.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  StrategyFlags strategy;
  std::optional<std::string> hardware;
  std::optional<std::int64_t> eager;
  std::optional<std::string> plan;
  std::optional<std::string> report;
  std::optional<std::string> trace;
  bool no_check = false;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "FILE",
                  .help = "a plan; or else --strategy",
                  .example = "step.plan",
                  .values = Values::files,
                  .required = false},
                 options.file);
  declare_strategy(flags, options.strategy, {});
  flags.text({.name = "--hardware",
              .value = "NAME",
              .help = fmt::format("the machine: a file, or one of {} (h100_80g_nvl8)",
                                  fmt::join(hardware::known_systems(), ", ")),
              .example = "h100_80g_nvl8"},
             options.hardware);
  flags.count({.name = "--eager",
               .value = "BYTES",
               .help = "messages up to this size need not be waited for (0)",
               .example = "65536"},
              options.eager);
  flags.text({.name = "--plan",
              .value = "FILE",
              .help = "write the strategy as a plan",
              .example = "step.plan",
              .values = Values::files},
             options.plan);
  flags.text({.name = "--report",
              .value = "FILE",
              .help = "write a picture: one HTML file",
              .example = "step.html",
              .values = Values::files},
             options.report);
  flags.text({.name = "--trace",
              .value = "FILE",
              .help = "write a trace for ui.perfetto.dev",
              .example = "step.pftrace",
              .values = Values::files},
             options.trace);
  flags.toggle({.name = "--no-check", .help = "do not check first that the plan is sound"},
               options.no_check);
  flags.toggle({.name = "--json", .help = "everything, for programs"}, options.json);
}

std::string command_of(const Options& options) {
  std::string command = "shiplap simulate";
  const auto add = [&](const char* flag, const std::optional<std::string>& value) {
    if (value) command += fmt::format(" {} {}", flag, shell_word(*value));
  };
  if (!options.file.empty()) command += " " + shell_word(options.file);
  for (const std::string& word : words_of(options.strategy)) command += " " + shell_word(word);
  add("--hardware", options.hardware);
  if (options.eager) command += fmt::format(" --eager {}", *options.eager);
  if (options.no_check) command += " --no-check";
  add("--plan", options.plan);
  add("--report", options.report);
  add("--trace", options.trace);
  return command;
}

// What is simulated, and what to say of it.
struct Subject {
  plan::Plan plan;
  std::optional<SourceText> source;  // of a plan that was read
  std::string name;
  std::string title;
  std::string detail;
  std::vector<std::string> assumed;
};

Subject of_strategy(const Options& options, const strategy::World& world) {
  const PreparedStrategy prepared = prepare(options.strategy, {}, world);
  strategy::Trainer& trainer = *prepared.trainer;
  trainer.run(prepared.entry->strategy);
  std::string mesh;
  for (const plan::Axis& axis : trainer.world().mesh) {
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : " ", axis.name, axis.size);
  }
  return {.plan = strategy::to_plan(trainer),
          .source = std::nullopt,
          .name = prepared.entry->name,
          .title = fmt::format("{} on {} ({})", prepared.entry->name,
                               counted(std::ssize(trainer.models()), "rank"), mesh),
          .detail = describe_training(trainer),
          .assumed = {describe_training(trainer) + "."}};
}

Subject of_plan(const std::string& file, Context& context) {
  LoadedPlan loaded = load_plan(file, context);
  const std::string name = loaded.source.short_name();
  return {.plan = std::move(loaded.plan),
          .source = std::move(loaded.source),
          .name = name,
          .title = name,
          .detail = "",
          .assumed = {}};
}

void write_files(const Options& options, const Subject& subject, const trace::Trace& trace) {
  if (options.plan) write_text(*options.plan, plan::to_text(subject.plan), "--plan");
  if (options.trace) {
    write_text(*options.trace, trace::to_perfetto(trace, {.title = subject.title}), "--trace");
  }
  if (options.report) {
    write_text(*options.report,
               to_html(trace_page(trace, {.name = subject.name,
                                          .assumed = subject.assumed,
                                          .command = command_of(options)})),
               "--report");
  }
}

ExitCode run_verb(const Options& options, Context& context) {
  check_subject({.file = options.file,
                 .strategy = options.strategy,
                 .keeps_plan = options.plan.has_value(),
                 .verb = "simulate",
                 .for_example = "1f1b"});
  strategy::World world;
  world.system = hardware::find_system(options.hardware.value_or("h100_80g_nvl8"));
  world.eager_up_to = {options.eager.value_or(0)};
  Subject subject =
      options.strategy.strategy ? of_strategy(options, world) : of_plan(options.file, context);
  subject.assumed.push_back(
      fmt::format("Predicted for {}, without contention between transfers.", world.system.name));
  const auto act = [&] {
    return sim::replay(subject.plan, {.system = world.system, .eager_up_to = world.eager_up_to});
  };
  const SourceText* source = subject.source ? &*subject.source : nullptr;
  std::optional<Bytes> eager;
  if (options.eager) eager = world.eager_up_to;
  const bool sound = options.no_check || checked_first(subject.plan, context, source, eager);
  sim::Replay replay = subject.source ? placing_errors(*subject.source, act) : act();
  for (Diagnostic& problem : replay.problems) {
    if (subject.source) problem = placed(std::move(problem), *subject.source);
  }
  write_files(options, subject, replay.trace);
  const trace::Summary summary = trace::summarize(replay.trace);
  if (options.json) {
    Json json = trace_to_json(replay.trace, summary);
    Json problems = Json::array();
    for (const Diagnostic& problem : replay.problems) problems.push(to_json(problem));
    Json all = Json::object({{"schema", "shiplap.simulate/1"},
                             {"name", subject.name},
                             {"hardware", world.system.name}});
    for (const auto& [key, value] : json.as_object()) all.set(key, value);
    all.set("problems", std::move(problems));
    context.out.stream << to_text(all) << '\n';
  } else {
    context.err.stream << render(replay.problems, context.err.colour);
    context.out.stream << painted(subject.title, kBold, context.out.colour)
                       << fmt::format(", predicted for {}\n", world.system.name)
                       << (subject.detail.empty() ? "" : subject.detail + "\n");
    if (replay.problems.empty()) {
      context.out.stream << '\n' << show_trace(replay.trace, summary, context);
    } else {
      context.out.stream << "cannot be carried out\n";
    }
  }
  return sound && replay.problems.empty() ? ExitCode::yes : ExitCode::no;
}

}  // namespace

Verb simulate_verb() {
  return make_verb<Options>(
      {.name = "simulate",
       .summary =
           "how long does it take, and how much memory? A strategy or a plan in virtual time",
       .examples =
           {{"shiplap simulate --strategy 1f1b --ranks 8 --layers 16 --batches 32",
             "a pipeline: step time, bubble, peak memory"},
            {"shiplap simulate --strategy fsdp --ranks 64 --hardware b200 --report out.html",
             "as a picture"},
            {"shiplap simulate --strategy ddp --ranks 8 --plan ddp.plan", "keep it as a plan"},
            {"shiplap simulate ddp.plan --trace out.pftrace", "any plan; a trace for Perfetto"}},
       .notes = "Exit code 1: the plan cannot be carried out (a deadlock, operations that do not "
                "fit), or is not sound (see `shiplap check`)."},
      {.declare = declare, .run = run_verb});
}

}  // namespace shiplap::cli
