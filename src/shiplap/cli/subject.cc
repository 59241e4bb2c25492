#include "shiplap/cli/subject.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/foreign_file.h"
#include "shiplap/layout/framework.h"
#include "shiplap/plan/text.h"
#include "shiplap/report/model.h"
#include "shiplap/report/text.h"
#include "shiplap/step/step.h"
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

// Modules of multi-token prediction.
std::int64_t prediction_modules(const TrainedModel& trained) {
  std::int64_t count = 0;
  for (const layout::Stage& stage : layout::stages_of(trained.layout, trained.model)) {
    count += stage.mtp;
  }
  return count;
}

Subject subject_of_step(const SubjectFlags& flags, Context& context) {
  const TrainedModel trained =
      trained_model(flags.strategy->model.value_or(""), flags.strategy->from.value_or(""),
                    flags.file, flags.strategy->ranks, context);
  const std::int64_t ranks = trained.layout.ranks();
  Subject subject{.plan = step::step_plan(trained.model, trained.layout),
                  .source = std::nullopt,
                  .name = trained.model.name,
                  .detail = describe(trained)};
  subject.title = fmt::format("{} on {}", subject.name, report::counted(ranks, "rank"));
  subject.mesh = format_axes(subject.plan.mesh.axes, " ");
  const workload::Tokens tokens{.sequences = trained.layout.global_batch,
                                .length = trained.layout.seq_length};
  subject.tokens = tokens.count();
  subject.model_flop = 3 * trained.model.forward_flop(tokens, prediction_modules(trained));
  subject.type = trained.model.type;
  return subject;
}

}  // namespace

report::TimedPlan Subject::timed(std::string where) const {
  return {.name = name,
          .title = title,
          .detail = detail,
          .where = std::move(where),
          .mesh = plan.mesh,
          .trace = {}};
}

TrainedModel trained_model(const std::string& model, const std::string& framework,
                           const std::string& text, std::optional<std::int64_t> ranks,
                           Context& context) {
  workload::ModelFile found = workload::find_model(model);
  context.err.stream << render(found.warnings, context.err.colour);
  const auto kind = layout::framework_named(framework);
  if (!kind) {
    throw_flag_error("--from", fmt::format("unknown framework `{}`", framework),
                     "use megatron, torchtitan, deepspeed or accelerate");
  }
  std::error_code ignored;
  // A word that is no flag is the name of a file, which may not exist.
  const bool is_word = text.find_first_of(" \t\n={") == text.npos && !text.starts_with("--");
  const bool is_file = is_word || std::filesystem::is_regular_file(text, ignored);
  const std::string words = is_file ? read_text(text, context.in, "").text : text;
  layout::LayoutFile read = layout::read_layout(*kind, words, found.model, ranks);
  context.err.stream << render(read.warnings, context.err.colour);
  return {.model = std::move(found.model), .layout = read.layout};
}

std::string describe(const TrainedModel& trained) {
  const layout::Layout& layout = trained.layout;
  std::vector<std::string> axes;
  if (layout.tensor > 1) {
    axes.push_back(fmt::format("tensor {}{}", layout.tensor,
                               layout.sequence_parallel ? " with sequence parallelism" : ""));
  }
  if (layout.context > 1) {
    axes.push_back(fmt::format("context {} ({})", layout.context, name(layout.context_method)));
  }
  if (layout.pipeline > 1) {
    const std::string chunks = layout.chunks > 1 ? fmt::format(" x {}", layout.chunks) : "";
    axes.push_back(
        fmt::format("pipeline {}{} ({})", layout.pipeline, chunks, name(layout.schedule)));
  }
  if (layout.expert > 1) {
    const std::string cut =
        layout.expert_tensor > 1 ? fmt::format(" x {}", layout.expert_tensor) : "";
    axes.push_back(fmt::format("expert {}{}", layout.expert, cut));
  }
  if (layout.data > 1) {
    const std::string sharded =
        layout.sharding == layout::Sharding::none
            ? ""
            : fmt::format(" (sharded: {}{})", name(layout.sharding),
                          layout.replicas > 1 ? fmt::format(", {} replicas", layout.replicas) : "");
    axes.push_back(fmt::format("data {}{}", layout.data, sharded));
  }
  if (const std::int64_t modules = prediction_modules(trained); modules > 0) {
    axes.push_back(report::counted(modules, "MTP module"));
  }
  if (axes.empty()) axes.emplace_back("one rank");
  return fmt::format("{} parameters; {}; {} of {} tokens in microbatches of {}",
                     report::parameter_count(trained.model.parameters()), fmt::join(axes, ", "),
                     report::counted(layout.global_batch, "sequence"), layout.seq_length,
                     layout.micro_batch);
}

void declare_subject(Flags& flags, std::string& file, StrategyFlags& strategy,
                     ScheduleFlags& schedule) {
  flags.argument({.name = "FILE",
                  .help = "a plan file; alternatives: --strategy, --schedule, --from",
                  .example = "step.plan",
                  .values = Values::files,
                  .required = false},
                 file);
  declare_strategy(flags, strategy, {});
  declare_schedule(flags, schedule);
}

Subject subject_of(const SubjectFlags& flags, Context& context, const StrategyDefaults& defaults,
                   const strategy::World& world) {
  check_subject(flags);
  if (flags.is_step()) return subject_of_step(flags, context);
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

void write_files(const TraceFiles& files, const plan::Plan& plan, const report::TimedPlan& timed,
                 const std::function<report::Page()>& page, Context& context) {
  if (files.plan) write_output({"--plan", files.plan}, plan::to_text(plan), context);
  if (files.trace) {
    write_output({"--trace", files.trace}, format_trace(*files.trace, timed.trace, timed.title),
                 context);
  }
  if (files.report) write_output({"--report", files.report}, to_html(page()), context);
}

}  // namespace shiplap::cli
