// Runs that follow a failed one: work may be run again, and one that ends on some ranks while
// others want to go on must not hang.
#pragma once

#include <vector>

#include "check.h"

namespace shiplap::comm {

// For the list: they are run by run_again alone.
[[nodiscard]] std::vector<Check> again_checks();

// Calls run_ranks itself. Rank 0 prints; false if this process saw something wrong.
[[nodiscard]] bool run_again(int threads, int ranks, const Selection& selection, int number);

}  // namespace shiplap::comm
