// What may be stated or written only once.
#pragma once

#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::oracle {

// No operation writes a row twice or, but in place, a row that it reads; no row is given twice.
[[nodiscard]] bool writes_once(const plan::RankProgram& program);

// No rank is given a version that another, or itself, makes.
[[nodiscard]] bool begins_before_update(const std::vector<plan::RankProgram>& ranks);

// No value names a contribution twice.
[[nodiscard]] bool sums_are_sets(const plan::RankProgram& program);

}  // namespace shiplap::oracle
