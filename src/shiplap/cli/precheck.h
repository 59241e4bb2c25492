// Checks a plan before it is simulated or run.
#pragma once

#include <optional>

#include "shiplap/base/units.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/files.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// Prints one line on standard error if the plan is sound, or if it is too large to be checked in a
// few seconds; otherwise prints the findings. `source` is the text of the plan, if there is one;
// sends of up to `eager_limit` are eager. Returns false if the plan is not sound. Throws InputError
// if the plan is invalid.
[[nodiscard]] bool precheck(const plan::Plan& plan, Context& context,
                            const SourceText* source = nullptr,
                            std::optional<Bytes> eager_limit = std::nullopt);

}  // namespace shiplap::cli
