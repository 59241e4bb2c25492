// How the groups of a mesh lie on the nodes of a system. The innermost network is that of a node.
#pragma once

#include <cstdint>
#include <optional>

#include "shiplap/base/diagnostic.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/mesh.h"

namespace shiplap::cost {

// The largest number of nodes that a group along `axis` has ranks on. REQUIRES: not an alias.
[[nodiscard]] std::int64_t nodes_of_group(const plan::Mesh& mesh, plan::AxisId axis,
                                          std::int64_t ranks_per_node);

// Returns warning D634 if the groups along the axis `tp` span nodes: tensor parallelism
// communicates in every layer, and networks between nodes are an order of magnitude slower. Names
// an order of axes that avoids or reduces it, if there is one.
[[nodiscard]] std::optional<Diagnostic> tensor_parallel_warning(const plan::Mesh& mesh,
                                                                const hardware::System& system);

}  // namespace shiplap::cost
