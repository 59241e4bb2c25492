// Plans that the command line names, and commands to be typed next.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/files.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/flags.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// Quoted, if it must be, so that it can be pasted into a shell.
[[nodiscard]] std::string shell_word(const std::string& word);
// "shiplap" and these.
[[nodiscard]] std::string shell_command(const std::vector<std::string>& words);

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

}  // namespace shiplap::cli
