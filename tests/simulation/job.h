// One simulated job: ranks that run a random program on comm/sockets while faults are injected, and
// the invariants that must hold.
#pragma once

#include <cstdint>
#include <string>

namespace shiplap::simulation {

struct Outcome {
  int faults = 0;
  std::string log;        // the faults, and the result of each rank
  std::string violation;  // of an invariant; empty: none
  bool all_well = false;  // every rank completed
  int named = 0;          // ranks that named a culprit
  std::int64_t steps = 0;
  double slowest =
      0;  // max virtual seconds from the timeout of an operation to the end of its rank
};

// Deterministic: the same seed gives the same outcome.
[[nodiscard]] Outcome simulate(std::uint64_t seed);

}  // namespace shiplap::simulation
