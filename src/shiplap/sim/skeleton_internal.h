// The operations of one rank as the clock reads them: what each takes alone, what it waits for.
#pragma once

#include <cstdint>
#include <span>

#include "shiplap/sim/job_internal.h"

namespace shiplap::sim {

// `streams` says which stream of the trace each stream of the program is.
[[nodiscard]] Skeleton skeleton_of(const plan::RankProgram& program, const hardware::System& system,
                                   std::span<const std::int32_t> streams);

// Fills in what follows from the steps.
void connect(Skeleton& skeleton);

// The whole buffer of a collective on this rank: the result of an all_gather, what a broadcast's
// receivers get, the input of the others. A barrier has none: no buffer.
[[nodiscard]] const plan::flat::Region& whole_buffer(const plan::RankProgram& program,
                                                     const plan::flat::Operation& op,
                                                     const plan::Collective& collective);

}  // namespace shiplap::sim
