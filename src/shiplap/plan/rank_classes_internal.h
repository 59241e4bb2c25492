// Partitions ranks into classes that must have the same counts: operations, bytes, memory.
#pragma once

#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Partitions `ranks`, all of `program`, into classes whose members have the same number of
// operations of each kind, the same bytes in each, and the same memory: they have equal positions
// on every axis that the counts may depend on. Conservative: ranks with equal counts may be in
// different classes.
[[nodiscard]] std::vector<std::vector<Rank>> rank_classes(const Plan& plan, const Program& program,
                                                          const std::vector<Rank>& ranks);

}  // namespace shiplap::plan
