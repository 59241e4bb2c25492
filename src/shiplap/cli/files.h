// Files that the command line names: read, written, and what to say when that fails.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

struct SourceText {
  std::string file;  // what to call it in messages
  std::string text;

  // Without its folder: for titles.
  [[nodiscard]] std::string short_name() const;
};

// `-` is standard input. A byte order mark is left out. Throws InputError D004.
[[nodiscard]] SourceText read_text(const std::string& file, Context& context);

// All of it or nothing: until it is written, whatever was there before stays. Throws InputError
// D005; `flag` is where the name was given.
void write_text(const std::string& file, std::string_view text, std::string_view flag);
// Throws what write_text would, as far as that can be known before there is a text: to be said
// before hours of work. `-` and no name are always right.
void check_writable(const std::optional<std::string>& file, std::string_view flag);

// Quoted, if it must be, so that it can be pasted into a shell.
[[nodiscard]] std::string shell_word(const std::string& word);

// The argument FILE of a command that reads a plan.
void declare_plan_file(Flags& flags, std::string& file);

// Tells a person, on standard error, what to type next.
void suggest_next(std::string_view command, Context& context);

// A plan and the text that it was read from.
struct LoadedPlan {
  SourceText source;
  plan::Plan plan;
};

// Throws InputError: D004, or what is wrong with the plan.
[[nodiscard]] LoadedPlan load_plan(const std::string& file, Context& context);

// The same with file and excerpt, where only the line was known.
[[nodiscard]] Diagnostic placed(Diagnostic diagnostic, const SourceText& source);

// Does something with a plan, and says where in its text a problem lies.
template <class Do>
auto placing_errors(const SourceText& source, const Do& act) {
  try {
    return act();
  } catch (const MissingPart&) {
    throw;
  } catch (const InputError& error) {
    std::vector<Diagnostic> diagnostics = error.diagnostics();
    for (Diagnostic& diagnostic : diagnostics) diagnostic = placed(std::move(diagnostic), source);
    throw InputError(std::move(diagnostics));
  }
}

}  // namespace shiplap::cli
