// Checks the causal mask: every item holds exactly the keys that its queries attend to.
#pragma once

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/findings_internal.h"

namespace shiplap::dispatch {

// REQUIRES: the tables are valid and consistent with each other. Adds D409 for violations.
void check_causality(const QkvDispatch& dispatch, Findings& found);

}  // namespace shiplap::dispatch
