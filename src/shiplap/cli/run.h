// The whole program without its process: runs `shiplap ARGUMENTS`.
#pragma once

#include <span>
#include <string>

#include "shiplap/cli/context.h"
#include "shiplap/cli/verb.h"

namespace shiplap::cli {

// `arguments` exclude the name of the program. Never throws: prints errors to stderr, and with
// --json also as JSON to stdout.
[[nodiscard]] ExitCode run(std::span<const std::string> arguments, std::span<const Verb> verbs,
                           Context& context);
// The same with all_verbs().
[[nodiscard]] ExitCode run(std::span<const std::string> arguments, Context& context);

}  // namespace shiplap::cli
