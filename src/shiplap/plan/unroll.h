// The same plan without loops, conditions and expressions: one program per rank, in plain numbers.
// For callers that change single operations of single ranks.
#pragma once

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Returns a plan in which every rank has the same expansion, except that an `after` that names no
// operation of its rank is left out. Rank r has program `r<r>`; all its statements are operations,
// `given` and `goal`, and the operation of index i is the i-th, counting the members of batches.
// Mesh, lists, tensors, tables and spares are unchanged. Throws InputError D2xx if `plan` is
// invalid.
[[nodiscard]] Plan unrolled(const Plan& plan);

}  // namespace shiplap::plan
