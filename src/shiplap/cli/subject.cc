#include "shiplap/cli/subject.h"

#include <fmt/format.h>

#include <utility>

#include "shiplap/cli/files.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/page.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/perfetto.h"

namespace shiplap::cli {

Subject subject_of(const std::string& file, Context& context) {
  LoadedPlan loaded = load_plan(file, context);
  const std::string name = loaded.source.short_name();
  return {.plan = std::move(loaded.plan),
          .source = std::move(loaded.source),
          .name = name,
          .title = name};
}

Subject subject_of(const StrategyFlags& flags, const StrategyDefaults& defaults,
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
  for (const plan::Axis& axis : trainer.world().mesh) {
    subject.mesh += fmt::format("{}{}={}", subject.mesh.empty() ? "" : " ", axis.name, axis.size);
  }
  return subject;
}

void declare_files(Flags& flags, TraceFiles& files, const TraceFilesHelp& help) {
  flags.file({.name = "--plan",
              .help = fmt::format("write the strategy as a plan{}", help.as),
              .example = "step.plan"},
             files.plan);
  flags.file({.name = "--report",
              .help = fmt::format("write an HTML report{}", help.of),
              .example = "step.html"},
             files.report);
  flags.file({.name = "--trace",
              .help = fmt::format("write a trace{} for ui.perfetto.dev", help.of),
              .example = "step.pftrace"},
             files.trace);
}

void write_files(const TraceFiles& files, const Subject& subject, const TraceOutput& output) {
  if (files.plan) write_text(*files.plan, plan::to_text(subject.plan), "--plan");
  if (files.trace) {
    write_text(*files.trace, trace::to_perfetto(output.trace, {.title = output.title}), "--trace");
  }
  if (!files.report) return;
  const report::Page page =
      report::trace_page(output.trace, {.name = subject.name,
                                        .assumed = output.assumed,
                                        .command = shell_command(output.arguments),
                                        .mesh = subject.plan.mesh});
  write_text(*files.report, to_html(page), "--report");
}

}  // namespace shiplap::cli
