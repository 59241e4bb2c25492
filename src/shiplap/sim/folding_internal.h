// Whether ranks that do the same operations also take the same time: see folding.cc.
#pragma once

#include "shiplap/hardware/system.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Throws plan::Asymmetric if a group, or the two ends of a message, lie on nodes and leaves in
// another way than those that represent them. Takes time in proportion to the ranks of all groups.
void throw_if_misplaced(const LinkedProgram& linked, const hardware::System& system);

}  // namespace shiplap::sim
