// A plan is checked before it is simulated or run.
#pragma once

#include "shiplap/cli/context.h"
#include "shiplap/cli/files.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// One line on standard error if the plan is sound, else what was found. `source` is the text that
// the plan was read from, if there is one. Throws InputError where the plan has no meaning.
[[nodiscard]] bool checked_first(const plan::Plan& plan, Context& context,
                                 const SourceText* source = nullptr);

}  // namespace shiplap::cli
