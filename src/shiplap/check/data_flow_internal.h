// Whether two plans that differ in the order of operations compute the same.
#pragma once

#include "shiplap/plan/plan.h"

namespace shiplap::check {

// Whether on every rank the same operations read the same values, and the buffers hold the same at
// the end. An operation is identified by its kernel, rows, peer and group; a received value by its
// receive. Also false if there are more than 4,096 ranks.
[[nodiscard]] bool same_data_flow(const plan::Plan& a, const plan::Plan& b);

}  // namespace shiplap::check
