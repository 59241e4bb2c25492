// What --help prints: examples first.
#pragma once

#include <span>
#include <string>

#include "shiplap/cli/context.h"
#include "shiplap/cli/verb.h"

namespace shiplap::cli {

// Of the whole program.
[[nodiscard]] std::string help(std::span<const Verb> verbs, const Context& context);
// Of one command.
[[nodiscard]] std::string help(const Verb& verb, const Context& context);

}  // namespace shiplap::cli
