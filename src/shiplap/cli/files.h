// Plan files on the command line, and suggested next commands.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/files.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// Quoted for a shell if necessary.
[[nodiscard]] std::string shell_word(const std::string& word);
// "shiplap WORDS..", quoted.
[[nodiscard]] std::string shell_command(const std::vector<std::string>& words);

// Prints a suggested next command on standard error.
void suggest_next(std::string_view command, Context& context);

// A plan and the text that it was read from.
struct LoadedPlan {
  SourceText source;
  plan::Plan plan;
};

// Throws InputError: D004, D008, or the errors of the plan.
[[nodiscard]] LoadedPlan load_plan(const std::string& file, Context& context);

}  // namespace shiplap::cli
