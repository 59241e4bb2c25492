// Runs one step of one rank on the calling thread alone: streams are interleaved, and messages make
// progress between operations and when a kernel calls poll_progress().
#pragma once

#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/run/operation_runner_internal.h"

namespace shiplap::run {

// Blocks until all operations are complete. Throws the first failure.
void run_polled(const StepContext& context);

// A collective blocks its rank until all others have entered it. If other communication must make
// progress meanwhile (on another stream, in the same batch, or because the collective is
// asynchronous), the job may deadlock. Returns D643 for such a plan.
[[nodiscard]] std::vector<Diagnostic> polling_conflicts(const plan::RankProgram& program);

}  // namespace shiplap::run
