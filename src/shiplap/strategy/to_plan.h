// What a strategy did, as a plan: the same operations on every rank, with explicit memory, so that
// others can check, time and execute it.
//
// Ranks that did the same share a program; numbers that differ between them are expressions of
// their position where one fits, and lists where none does; each fit is checked against every rank.
#pragma once

#include "shiplap/plan/plan.h"
#include "shiplap/strategy/train.h"

namespace shiplap::strategy {

// REQUIRES: the trainer has run. Throws InputError D625 where a step
// cannot be repeated: a loaded weight that is dropped, or whose update lies elsewhere; D622 where a
// weight cannot be cut into that many shards.
[[nodiscard]] plan::Plan to_plan(const Trainer& trainer);

}  // namespace shiplap::strategy
