#include "shiplap/cli/subject.h"

#include <fmt/format.h>

#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/foreign_file.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/page.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap::cli {
namespace {

Subject subject_of_file(const std::string& file, Context& context) {
  LoadedPlan loaded = load_plan(file, context);
  const std::string name = loaded.source.short_name();
  return {.plan = std::move(loaded.plan),
          .source = std::move(loaded.source),
          .name = name,
          .title = name};
}

// Throws InputError: D008, or the errors of the schedule.
plan::Plan parse_schedule(const SourceText& source, const strategy::ActionCosts& costs) {
  return read_or_recognize(
      [&] { return strategy::plan_of_schedule(source.text, source.file, costs); },
      [&] { return foreign_schedule_error(source); });
}

Subject subject_of_schedule(const ScheduleFlags& flags, Context& context) {
  const strategy::ActionCosts costs = costs_of(flags);
  SourceText source = read_text(flags.schedule.value_or(""), context.in, ".csv");
  plan::Plan plan = parse_schedule(source, costs);
  const std::string name = source.short_name();
  return {.plan = std::move(plan),
          .source = std::move(source),
          .name = name,
          .title = name,
          .detail = describe_costs(costs)};
}

Subject subject_of_strategy(const StrategyFlags& flags, const StrategyDefaults& defaults,
                            const strategy::World& world) {
  const PreparedStrategy prepared = prepare(flags, defaults, world);
  strategy::Trainer& trainer = *prepared.trainer;
  trainer.run(prepared.entry->strategy);
  Subject subject{.plan = strategy::to_plan(trainer),
                  .source = std::nullopt,
                  .name = prepared.entry->name,
                  .detail = describe_training(trainer)};
  subject.title =
      fmt::format("{} on {}", subject.name, report::counted(std::ssize(trainer.models()), "rank"));
  subject.mesh = format_axes(trainer.world().mesh, " ");
  return subject;
}

}  // namespace

Subject subject_of(const SubjectFlags& flags, Context& context, const StrategyDefaults& defaults,
                   const strategy::World& world) {
  check_subject(flags);
  if (flags.is_strategy()) return subject_of_strategy(*flags.strategy, defaults, world);
  if (flags.is_schedule()) return subject_of_schedule(*flags.schedule, context);
  return subject_of_file(flags.file, context);
}

void declare_files(Flags& flags, TraceFiles& files, const TraceFilesHelp& help) {
  flags.file(
      {.name = "--plan",
       .help = fmt::format("write the {} as a plan{}; `-` is standard output", help.what, help.as),
       .example = "step.plan"},
      files.plan);
  flags.file({.name = "--report",
              .help = fmt::format("write an HTML report{}", help.of),
              .example = "step.html"},
             files.report);
  flags.file(
      {.name = "--trace",
       .help = fmt::format("write a trace{} for ui.perfetto.dev, or JSON if the name ends in "
                           ".json",
                           help.of),
       .example = "step.pftrace"},
      files.trace);
}

std::vector<OutputFile> outputs_of(const TraceFiles& files) {
  return {{"--plan", files.plan}, {"--trace", files.trace}, {"--report", files.report}};
}

void write_files(const TraceFiles& files, const Subject& subject, const TraceOutput& output,
                 Context& context) {
  if (files.plan) write_output({"--plan", files.plan}, plan::to_text(subject.plan), context);
  if (files.trace) {
    write_output({"--trace", files.trace}, format_trace(*files.trace, output.trace, output.title),
                 context);
  }
  if (!files.report) return;
  const report::Page page =
      report::trace_page(output.trace, {.name = subject.name,
                                        .assumed = output.assumed,
                                        .command = shell_command(output.arguments),
                                        .mesh = subject.plan.mesh});
  write_output({"--report", files.report}, to_html(page), context);
}

}  // namespace shiplap::cli
