// Builds the template of a rank: see rank_template.cc.
#pragma once

#include "shiplap/plan/link.h"

namespace shiplap::plan {

[[nodiscard]] RankTemplate template_of(const RankProgram& program, const LinkOptions& options);

// Fills in the derived members: in-degrees and successors.
void connect(RankTemplate& rank_template);

}  // namespace shiplap::plan
