// What the ranks of a world have recorded so far, in virtual time.
#pragma once

#include "shiplap/strategy/dist.h"

namespace shiplap::strategy {

// Lowers the records of all models to a plan and replays it with sim. A rank may be in the middle
// of a step: what is not complete is left out.
[[nodiscard]] Timeline replay(const Dist& dist);

}  // namespace shiplap::strategy
