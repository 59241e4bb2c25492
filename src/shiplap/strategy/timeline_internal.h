// Replays the recordings of a world in virtual time.
#pragma once

#include "shiplap/strategy/dist.h"

namespace shiplap::strategy {

// Lowers the recordings of all models to a plan and replays it with sim. Ranks may be in the middle
// of a step: incomplete communication is left out.
[[nodiscard]] Timeline replay(const Dist& dist);

}  // namespace shiplap::strategy
