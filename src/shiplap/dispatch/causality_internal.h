// Does every item hold exactly the keys that its queries may see?
#pragma once

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/findings_internal.h"

namespace shiplap::dispatch {

// For tables that are sound and fit together. Adds D409.
void check_causality(const QkvDispatch& dispatch, Findings& found);

}  // namespace shiplap::dispatch
