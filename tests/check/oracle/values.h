// Do the statements of a plan hold, and its goals? The plan is executed, on exact rationals.
#pragma once

#include <string>

#include "matching.h"
#include "rules.h"

namespace shiplap::oracle {

// Returns the rule that the plan breaks first, "" if it breaks none. `counts` is how often each
// rule was asked. REQUIRES: everything meets what agrees with it, without deadlock and without
// races: then one order represents all.
[[nodiscard]] std::string first_broken_rule(const Job& job, const Matching& matching,
                                            RuleCounts& counts);

}  // namespace shiplap::oracle
