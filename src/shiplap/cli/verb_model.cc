// shiplap model: lists the known models, or shows the parts of one.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/verb.h"
#include "shiplap/report/model.h"
#include "shiplap/workload/model.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::string model;
  std::optional<std::int64_t> seq_length;
  std::optional<std::int64_t> sequences;
  bool json = false;
};

void declare(Flags& flags, Options& options) {
  flags.argument({.name = "MODEL",
                  .help = "a known model or a config.json of Hugging Face; default: list all",
                  .example = "llama3-8b",
                  .required = false,
                  .suggestions = workload::known_models()},
                 options.model);
  flags.count({.name = "--seq-length", .help = "tokens of a sequence (4096)", .example = "8192"},
              options.seq_length);
  flags.count({.name = "--sequences", .help = "sequences of the batch (1)", .example = "2"},
              options.sequences);
  flags.toggle({.name = "--json", .help = "print JSON"}, options.json);
}

// Above, counts are no longer exact.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;

std::int64_t tokens_of(std::string_view flag, const std::optional<std::int64_t>& value,
                       std::int64_t standard) {
  const std::int64_t count = value.value_or(standard);
  if (count >= 1 && count <= kMaxTokens) return count;
  throw_flag_error(std::string(flag), fmt::format("expected 1 to 2^31, found {}", count));
}

ExitCode show_model(const Options& options, Context& context) {
  if (options.model.empty()) {
    std::vector<workload::Model> models;
    for (const std::string& name : workload::known_models()) {
      models.push_back(workload::find_model(name).model);
    }
    context.out.stream << (options.json ? to_text(report::models_json(models)) + "\n"
                                        : report::models_text(models, context.text_style()));
    return ExitCode::yes;
  }
  const workload::ModelFile found = workload::find_model(options.model);
  const workload::Tokens tokens{.sequences = tokens_of("--sequences", options.sequences, 1),
                                .length = tokens_of("--seq-length", options.seq_length, 4096)};
  if (options.json) {
    Json json = report::model_json(found.model, tokens);
    json.set("warnings", to_json(found.warnings));
    context.out.stream << to_text(json) << "\n";
  } else {
    context.err.stream << render(found.warnings, context.err.colour);
    context.out.stream << report::model_text(found.model, tokens, context.text_style());
  }
  return ExitCode::yes;
}

}  // namespace

Verb model_verb() {
  return make_verb<Options>(
      {.name = "model",
       .summary = "list the known models, or show the parts of one: parameters, FLOPs, bytes",
       .examples = {{"shiplap model", "the names for --model"},
                    {"shiplap model llama3-8b --seq-length 8192", "its parts"},
                    {"shiplap model deepseek-v3 --json", "for a program"}},
       .notes = "docs/models.md says what is read, counted and assumed."},
      {.declare = declare, .run = show_model});
}

}  // namespace shiplap::cli
