// Who waits for whom when nothing can go on.
#pragma once

#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// D630, and notes for the first stuck ranks. Promises that some operation is not complete.
[[nodiscard]] std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked,
                                                        const Clock& clock);

}  // namespace shiplap::sim
