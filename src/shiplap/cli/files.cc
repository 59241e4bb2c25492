#include "shiplap/cli/files.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "shiplap/plan/text.h"

namespace shiplap::cli {

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string shell_command(const std::vector<std::string>& words) {
  std::string command = "shiplap";
  for (const std::string& word : words) command += " " + shell_word(word);
  return command;
}

void declare_plan_file(Flags& flags, std::string& file) {
  flags.argument(
      {.name = "FILE",
       .help = "a plan file, text or JSON; `-` is standard input; alternative: --schedule",
       .example = "step.plan",
       .values = Values::files,
       .required = false},
      file);
}

void suggest_next(std::string_view command, Context& context) {
  context.err.stream << report::styled("next: ", report::kDim, context.err.colour) << command
                     << '\n';
}

namespace {

// A schedule is not a plan, but its file may be given in place of one.
InputError with_schedule_hint(const InputError& error, const std::string& file) {
  std::vector<Diagnostic> diagnostics = error.diagnostics();
  diagnostics.front().help = fmt::format(
      "a pipeline schedule is given by a flag: `shiplap check --schedule {}`", shell_word(file));
  return InputError(std::move(diagnostics));
}

}  // namespace

LoadedPlan load_plan(const std::string& file, Context& context) {
  LoadedPlan loaded{.source = read_text(file, context.in)};
  try {
    loaded.plan = plan::parse_plan(loaded.source.text, loaded.source.file);
  } catch (const InputError& error) {
    if (!file.ends_with(".csv") || error.diagnostics().front().code != "D100") throw;
    throw with_schedule_hint(error, file);
  }
  return loaded;
}

}  // namespace shiplap::cli
