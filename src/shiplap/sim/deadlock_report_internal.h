// Explains a deadlock: which ranks hang, and the wait cycle.
#pragma once

#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/units.h"
#include "shiplap/sim/clock_internal.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Returns D630, and a note for each of the first ranks that hang. Sends of up to `eager` bytes are
// eager. If the program deadlocks only because each rank has one hardware queue: D636. REQUIRES:
// `clock` has run and is not complete.
[[nodiscard]] std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked, Bytes eager,
                                                        const Clock& clock);

}  // namespace shiplap::sim
