// The same plan without loops, conditions and expressions: one program per rank, in plain numbers.
// For those who change single operations of single ranks.
#pragma once

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Every rank expands to what it expanded to before, except that an `after` that names nothing on
// its rank is left out. Rank r has program `r<r>`; all its statements are operations, `given` and
// `goal`, and the operation of index i is the i-th, counting the members of batches. Mesh, lists,
// tensors, tables and spares are kept. Throws InputError D2xx where `plan` has no meaning.
[[nodiscard]] Plan unrolled(const Plan& plan);

}  // namespace shiplap::plan
