// shiplap export: converts a plan between text and JSON.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shiplap/cli/files.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/plan/text.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string file;
  ScheduleFlags schedule;
  std::optional<std::string> to;
  std::optional<std::string> output;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument(
      {.name = "FILE",
       .help = "a plan file, text or JSON; `-` is standard input; alternative: --schedule",
       .example = "step.plan",
       .values = Values::files,
       .required = false},
      options.file);
  declare_schedule(flags, options.schedule);
  flags.text(
      {.name = "--to",
       .value = "FORMAT",
       .help =
           "plan (text) or json; default: the format that FILE does not have; plan for a schedule",
       .example = "json",
       .choices = {"plan", "json"}},
      options.to);
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write to this file instead of standard output",
              .example = "step.json"},
             options.output);
  flags.toggle({.name = "--json", .help = "the same as --to json"}, options.json);
}

bool to_json_wanted(const Options& options, const Subject& subject) {
  if (options.json && options.to == "plan") {
    throw_flag_error("--json", "`--json` and `--to plan` contradict each other",
                     "give one of them");
  }
  if (options.json) return true;
  if (options.to) return *options.to == "json";
  return !options.schedule.schedule && subject.source && !plan::is_json_form(subject.source->text);
}

ExitCode export_plan(const Options& options, Context& context) {
  const Subject subject =
      subject_of({.file = options.file, .schedule = &options.schedule, .verb = "export"}, context);
  const std::vector<OutputFile> outputs = {{"--output", options.output}};
  check_outputs(outputs, false, subject.file());
  const bool json = to_json_wanted(options, subject);
  const std::string text =
      json ? to_text(plan::to_json(subject.plan)) + "\n" : plan::to_text(subject.plan);
  write_output(outputs.front(), text, context);
  if (options.output && *options.output != "-") {
    suggest_next(fmt::format("shiplap show {}", shell_word(*options.output)), context);
  }
  return ExitCode::yes;
}

}  // namespace

Verb export_verb() {
  return make_verb<Options>(
      {.name = "export",
       .summary = "convert a plan: text to JSON, JSON to text, a pipeline schedule to text",
       .examples = {{"shiplap export step.plan -o step.json", "a plan as JSON"},
                    {"shiplap export step.json", "as text, to standard output"},
                    {"shiplap export --schedule schedule.csv -o schedule.plan",
                     "a PyTorch pipeline schedule as a plan"},
                    {"shiplap export step.plan --to plan", "reformat the text"}},
       .notes = "Both formats describe the same plan. Comments are lost."},
      {.declare = declare, .run = export_plan});
}

}  // namespace shiplap::cli
