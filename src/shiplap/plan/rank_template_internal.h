// The operations of one rank: what each moves, and what it waits for on its own rank.
#pragma once

#include <cstdint>
#include <span>

#include "shiplap/plan/link.h"

namespace shiplap::plan {

// `streams` says which stream of the trace each stream of the program is.
[[nodiscard]] RankTemplate template_of(const RankProgram& program,
                                       std::span<const std::int32_t> streams,
                                       const LinkOptions& options);

// Fills in what follows from the steps.
void connect(RankTemplate& rank_template);

}  // namespace shiplap::plan
