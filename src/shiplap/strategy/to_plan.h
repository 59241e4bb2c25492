// Lowers a recorded strategy to a plan: the same operations on every rank, with explicit memory, to
// be checked, simulated and executed.
//
// Ranks with equal steps share a program. Numbers that differ between them become affine
// expressions of the mesh position if one fits, else lists by rank.
#pragma once

#include "shiplap/plan/plan.h"
#include "shiplap/strategy/train.h"

namespace shiplap::strategy {

// REQUIRES: the trainer has run. Throws InputError D625 if the step cannot be repeated (a loaded
// weight is dropped, or its update is stored elsewhere), D622 if a weight cannot be divided into
// that many shards.
[[nodiscard]] plan::Plan to_plan(const Trainer& trainer);

}  // namespace shiplap::strategy
