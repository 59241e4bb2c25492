// The word of the plan for a collective of a strategy.
#pragma once

#include "shiplap/plan/operation.h"
#include "shiplap/trace/event.h"

namespace shiplap::strategy {

// Promises that strategies have such a collective.
[[nodiscard]] plan::CollectiveKind collective_of(trace::Kind kind);

}  // namespace shiplap::strategy
