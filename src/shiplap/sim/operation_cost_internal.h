// How long an operation takes on a system, as far as that depends on its own rank alone.
#pragma once

#include "shiplap/hardware/system.h"
#include "shiplap/plan/expand.h"

namespace shiplap::sim {

// Seconds of a computation, copy or exchange. Throws InputError D602 where the system does not say
// how fast it is.
[[nodiscard]] double operation_cost(const hardware::System& system,
                                    const plan::RankProgram& program,
                                    const plan::flat::Operation& op);

}  // namespace shiplap::sim
