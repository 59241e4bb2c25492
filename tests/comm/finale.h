// The checks that end a job, and so come last: a rank that leaves, and one that throws.
#pragma once

#include <atomic>
#include <vector>

#include "check.h"

namespace shiplap::comm {

// What the ranks of this process found: all of them if they are threads, one otherwise.
struct Finale {
  std::atomic<int> failures = 0;
  std::atomic<bool> threw = false;  // one of them has thrown kPlanted
};

inline constexpr const char* kPlanted = "planted";

// For the list: they are run by run_finale alone.
[[nodiscard]] std::vector<Check> finale_checks();

// `number` checks were run before. Throws kPlanted on rank 1. Afterwards the ranks cannot agree on
// anything: rank 0 prints what it saw, and each tells `finale` what went wrong.
void run_finale(Communicator& world, const Selection& selection, int number, Finale& finale);

// Which ranks must be blamed for the end of the job.
[[nodiscard]] bool is_to_blame(int rank, int ranks);

}  // namespace shiplap::comm
