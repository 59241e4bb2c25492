// Where the sound plans come from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "families.h"

namespace shiplap::mutations {

// The text that replaces `$name` in a plan.
using Substitutions = std::map<std::string, std::string>;

// tests/check/plans/FAMILY.plan with its names substituted.
[[nodiscard]] Sound from_text(const std::string& family, const Substitutions& substitutions);

// Several numbers in a row, as in a list.
[[nodiscard]] std::string joined(const std::vector<std::int64_t>& numbers);

void add_texts(std::vector<Sound>& all);
void add_experts(std::vector<Sound>& all);
void add_strategies(std::vector<Sound>& all);
void add_dispatches(std::vector<Sound>& all);
void add_overlaps(std::vector<Sound>& all);
void add_examples(std::vector<Sound>& all);

}  // namespace shiplap::mutations
