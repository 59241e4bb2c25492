// The operations of one rank: what each moves, and what it waits for on its own rank.
#pragma once

#include "shiplap/plan/link.h"

namespace shiplap::plan {

[[nodiscard]] RankTemplate template_of(const RankProgram& program, const LinkOptions& options);

// Fills in what follows from the steps.
void connect(RankTemplate& rank_template);

}  // namespace shiplap::plan
