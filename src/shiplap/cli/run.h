// The whole program, but for its process: what `shiplap ARGUMENTS` prints and answers.
#pragma once

#include <span>
#include <string>

#include "shiplap/cli/context.h"
#include "shiplap/cli/verb.h"

namespace shiplap::cli {

// `arguments` without the name of the program. Never throws: what goes wrong is printed, and also
// written as JSON to stdout if --json is among them.
[[nodiscard]] ExitCode run(std::span<const std::string> arguments, std::span<const Verb> verbs,
                           Context& context);
// With all commands there are.
[[nodiscard]] ExitCode run(std::span<const std::string> arguments, Context& context);

}  // namespace shiplap::cli
