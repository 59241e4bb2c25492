// All commands.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "shiplap/cli/verb.h"

namespace shiplap::cli {

// In the order in which --help lists them.
[[nodiscard]] std::vector<Verb> all_verbs();

// Returns null if there is no such command.
[[nodiscard]] const Verb* find_verb(std::span<const Verb> verbs, std::string_view name);

}  // namespace shiplap::cli
