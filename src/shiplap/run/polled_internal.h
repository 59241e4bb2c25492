// One step of one rank without any thread of its own: streams take turns, and messages are looked
// after between operations and when a kernel looks around.
#pragma once

#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/run/step_internal.h"

namespace shiplap::run {

// Returns when all operations are complete, and when each was; throws the first failure.
[[nodiscard]] std::vector<Timing> run_polled(const StepContext& context);

// A collective keeps its rank until all others have come. If other communication should go on
// beside it, on another stream, in its batch or because it is asynchronous, that may never be:
// D643.
[[nodiscard]] std::vector<Diagnostic> not_to_be_polled(const plan::RankProgram& program);

}  // namespace shiplap::run
