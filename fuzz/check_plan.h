// What must hold of every plan that could be read, wherever it came from.
#pragma once

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Prints, reads again and compares, in both forms; expands a few ranks; summarizes. Throws
// InternalError if a promise is broken; refusals of expand() and summarize() are fine.
void check_plan(const Plan& plan);

}  // namespace shiplap::plan
