// Whether ranks that do the same operations also take the same time: see folding.cc.
#pragma once

#include <cstddef>
#include <vector>

#include "shiplap/hardware/system.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Throws plan::Asymmetric if a group, or the two ends of a message, lie on nodes and leaves in
// another way than those that represent them. Takes time in proportion to the ranks of all groups.
void throw_if_misplaced(const LinkedProgram& linked, const hardware::System& system);

// The axes of the symmetry, by index, that a group does not span: it has an image at each of their
// positions. A group spans an axis whole or not at all.
[[nodiscard]] std::vector<std::size_t> axes_across(const plan::RankSet& group,
                                                   const plan::Symmetry& symmetry);

}  // namespace shiplap::sim
