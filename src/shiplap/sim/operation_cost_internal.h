// The duration of an operation on a system, as far as it depends on its own rank alone.
#pragma once

#include "shiplap/hardware/system.h"
#include "shiplap/plan/expand.h"

namespace shiplap::sim {

// Returns the seconds of a computation, copy or exchange. Throws InputError D602 if the system has
// no speed for it.
[[nodiscard]] double operation_cost(const hardware::System& system,
                                    const plan::RankProgram& program,
                                    const plan::flat::Operation& op);

}  // namespace shiplap::sim
