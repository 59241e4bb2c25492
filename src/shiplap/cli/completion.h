// Shell completion scripts, generated from the list of commands and their flags.
#pragma once

#include <span>
#include <string>

#include "shiplap/cli/verb.h"

namespace shiplap::cli {

[[nodiscard]] std::string bash_completion(std::span<const Verb> verbs);
[[nodiscard]] std::string zsh_completion(std::span<const Verb> verbs);
[[nodiscard]] std::string fish_completion(std::span<const Verb> verbs);

}  // namespace shiplap::cli
