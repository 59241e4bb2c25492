// Runs one step of one rank on threads: one per stream, and one per group or channel that needs it.
#pragma once

#include "shiplap/run/operation_runner_internal.h"

namespace shiplap::run {

// Blocks until all operations are complete. Rethrows the first failure.
void run_on_threads(const StepContext& context);

}  // namespace shiplap::run
