// shiplap plan: the plan of a training step, from a model and its layout; or the layout in the
// words of another framework.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shiplap/cli/files.h"
#include "shiplap/cli/output_files.h"
#include "shiplap/cli/subject.h"
#include "shiplap/cli/verb.h"
#include "shiplap/layout/framework.h"
#include "shiplap/report/model.h"
#include "shiplap/step/step.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string layout;
  StrategyFlags step;  // only a model and its layout
  std::optional<std::string> to;
  std::optional<std::string> output;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "LAYOUT",
                  .help = "flags in quotes, or the file that has them",
                  .example = "train.sh",
                  .values = Values::files},
                 options.layout);
  declare_step(flags, options.step);
  flags.text({.name = "--to",
              .value = "FORM",
              .help = "plan, or the layout in the words of megatron, torchtitan, deepspeed or "
                      "accelerate (plan)",
              .example = "torchtitan",
              .choices = {"plan", "megatron", "torchtitan", "deepspeed", "accelerate"}},
             options.to);
  flags.file({.name = "--output",
              .letter = "-o",
              .value = "OUT",
              .help = "write to this file instead of standard output",
              .example = "step.plan"},
             options.output);
}

// The framework's words, as a file.
std::string with_line_end(std::string text) {
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

ExitCode write_plan(const Options& options, Context& context) {
  if (!options.step.model) {
    throw_flag_error("--model", "there is no model", "add --model llama3-70b, or a config.json");
  }
  if (!options.step.from) {
    throw_flag_error("--from", "whose words LAYOUT uses is not said",
                     "add --from megatron, torchtitan, deepspeed or accelerate");
  }
  const std::vector<OutputFile> outputs = {{"--output", options.output}};
  check_outputs(outputs, false, options.layout);
  const TrainedModel trained = trained_model(*options.step.model, *options.step.from,
                                             options.layout, options.step.ranks, context);
  const std::optional<layout::Framework> to = layout::framework_named(options.to.value_or("plan"));
  write_output(outputs.front(),
               to ? with_line_end(layout::write_layout(*to, trained.layout, trained.model))
                  : step::step_text(trained.model, trained.layout),
               context);
  if (options.output && *options.output != "-") {
    context.err.stream << fmt::format("{} on {}: {}\n", trained.model.name,
                                      report::counted(trained.layout.ranks(), "rank"),
                                      describe(trained));
    if (to || *options.output == "/dev/null") return ExitCode::yes;
    suggest_next(fmt::format("shiplap check {}", shell_word(*options.output)), context);
  }
  return ExitCode::yes;
}

}  // namespace

Verb plan_verb() {
  return make_verb<Options>(
      {.name = "plan",
       .summary = "the plan of a training step, from a model and the flags of your framework",
       .examples =
           {{"shiplap plan --model llama3-70b --from megatron train.sh", "of a launch script"},
            {"shiplap plan --model llama3-70b --from megatron '--tensor-model-parallel-size 8 "
             "--pipeline-model-parallel-size 4 --sequence-parallel --global-batch-size 128' "
             "--ranks 64 -o step.plan",
             "flags as they are pasted into issues"},
            {"shiplap plan --model llama3-8b --from torchtitan "
             "'--parallelism.tensor_parallel_degree 8' --ranks 64 --to megatron",
             "the same layout in the words of another framework"}},
       .notes = "`check`, `simulate` and `show` take the file, or --model and --from "
                "themselves. docs/layouts.md has the words of each framework, "
                "docs/step.md what is planned."},
      {.declare = declare, .run = write_plan});
}

}  // namespace shiplap::cli
