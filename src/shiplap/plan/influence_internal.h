// Which axes of the mesh decide how many operations a rank has and how many bytes they move.
#pragma once

#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Sorts `ranks`, all of `program`, into sets whose members have the same number of operations of
// each kind, the same bytes in each, and the same memory: they agree on every axis that could make
// a difference. Safe rather than sharp: ranks that happen to count alike may be in different sets.
[[nodiscard]] std::vector<std::vector<Rank>> ranks_alike(const Plan& plan, const Program& program,
                                                         const std::vector<Rank>& ranks);

}  // namespace shiplap::plan
