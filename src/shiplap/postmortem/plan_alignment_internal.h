// Where ranks are in the plan of their job.
#pragma once

#include <cstdint>
#include <optional>

#include "shiplap/plan/plan.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// None if the rank has no dump or is not in the plan. REQUIRES: `plan` is valid.
[[nodiscard]] std::optional<PlannedPosition> planned_position(const plan::Plan& plan,
                                                              const Progress& progress,
                                                              std::int32_t rank);

}  // namespace shiplap::postmortem
