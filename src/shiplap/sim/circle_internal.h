// A circle of operations each of which waits for the next, where there is one.
#pragma once

#include <vector>

#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// `waiting` has started and cannot be complete before `awaited`, of another rank or the same, has
// started; that one stands behind the `waiting` of the next wait, the last behind the first.
struct Wait {
  Place waiting;
  Place awaited;
};

// Empty if there is none: somebody waits for what never comes.
[[nodiscard]] std::vector<Wait> find_circle(const LinkedProgram& linked, const Clock& clock);

}  // namespace shiplap::sim
