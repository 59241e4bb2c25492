// One step of one rank on threads: those of its schedule, and how they end together.
#pragma once

#include <vector>

#include "shiplap/run/step_internal.h"

namespace shiplap::run {

// Returns when all operations are complete, and when each was; throws the first failure.
[[nodiscard]] std::vector<Timing> run_on_threads(const StepContext& context);

}  // namespace shiplap::run
