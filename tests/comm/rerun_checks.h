// Checks after a failed run: run_ranks() may be called again, and a run that ends on some ranks
// while others continue must not hang.
#pragma once

#include <vector>

#include "check.h"

namespace shiplap::comm {

// For --list. They are run by run_rerun_checks().
[[nodiscard]] std::vector<Check> rerun_checks();

// Calls run_ranks() itself. Rank 0 prints. Returns false if a check failed in this process.
[[nodiscard]] bool run_rerun_checks(int threads, int ranks, const Selection& selection, int number);

}  // namespace shiplap::comm
