// One rank's operations as text, with every number in it, for tests that compare expansions.
#pragma once

#include <string>

#include "shiplap/plan/expand.h"

namespace shiplap::plan {

[[nodiscard]] std::string flat_text(const RankProgram& program);

// The same of expand(plan, rank), or what it was refused with.
[[nodiscard]] std::string expansion_text(const Plan& plan, Rank rank);

}  // namespace shiplap::plan
