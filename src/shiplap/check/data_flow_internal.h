// Whether two plans that differ in the order of their operations compute the same.
#pragma once

#include "shiplap/plan/plan.h"

namespace shiplap::check {

// Whether on every rank the same operations find the same in the rows that they read, and leave the
// same at the end; an operation is what it is called on: its kernel, rows, peer, group. What
// arrives from other ranks is known by the operation that takes it. False as well where there are
// too many ranks to look at.
[[nodiscard]] bool same_data_flow(const plan::Plan& a, const plan::Plan& b);

}  // namespace shiplap::check
