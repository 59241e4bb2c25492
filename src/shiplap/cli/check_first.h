// A plan is checked before it is simulated or run.
#pragma once

#include <optional>

#include "shiplap/base/units.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/files.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// One line on standard error if the plan is sound, or if it is so large that checking would keep
// people waiting; else what was found. `source` is the text that the plan was read from, if there
// is one; sends of up to `eager_up_to` are eager. Returns false if the plan is not sound. Throws
// InputError where it has no meaning.
[[nodiscard]] bool checked_first(const plan::Plan& plan, Context& context,
                                 const SourceText* source = nullptr,
                                 std::optional<Bytes> eager_up_to = std::nullopt);

}  // namespace shiplap::cli
