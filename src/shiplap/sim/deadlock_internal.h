// Who waits for whom when nothing can go on.
#pragma once

#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/units.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// D630, and notes for the first stuck ranks. Sends of up to `eager` bytes are eager.
// REQUIRES: the program gets stuck.
[[nodiscard]] std::vector<Diagnostic> deadlock_problems(const LinkedProgram& linked, Bytes eager);

}  // namespace shiplap::sim
