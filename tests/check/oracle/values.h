// Do the statements of a plan hold, and its goals? Played row by row.
#pragma once

#include "matching.h"

namespace shiplap::oracle {

// Promises that everything meets what agrees with it, without deadlock and without races: then one
// order stands for all.
[[nodiscard]] bool values_hold(const Job& job, const Matching& matching);

}  // namespace shiplap::oracle
