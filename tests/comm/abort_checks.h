// Checks that end a job, and so come last: a rank that aborts, and one that throws.
#pragma once

#include <atomic>
#include <vector>

#include "check.h"

namespace shiplap::comm {

// Results of the ranks of this process: all of them if they are threads, one otherwise.
struct AbortResults {
  std::atomic<int> failures = 0;
  std::atomic<bool> threw = false;  // a rank has thrown kPlanted
};

inline constexpr const char* kPlanted = "planted";

// For --list. They are run by run_abort_checks().
[[nodiscard]] std::vector<Check> abort_checks();

// `number` checks were run before. Throws kPlanted on rank 1. Afterwards the ranks cannot
// communicate: rank 0 prints its own result, and each rank adds its failures to `results`.
void run_abort_checks(Communicator& world, const Selection& selection, int number,
                      AbortResults& results);

// Whether `rank` is a correct culprit for the end of the job.
[[nodiscard]] bool is_expected_culprit(int rank, int ranks);

}  // namespace shiplap::comm
