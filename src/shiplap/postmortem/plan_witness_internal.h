// What a plan says of the suspects.
#pragma once

#include "shiplap/plan/plan.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// Sets what the plan says of each suspect, and its confidence; adds positions and notes.
void ask_plan(const plan::Plan& plan, const Progress& progress, Postmortem& result);

}  // namespace shiplap::postmortem
