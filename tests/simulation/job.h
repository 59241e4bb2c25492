// One simulated job: ranks that run a random program on comm/sockets while faults happen, and the
// laws that must hold whatever happens.
#pragma once

#include <cstdint>
#include <string>

namespace shiplap::simulation {

struct Outcome {
  int faults = 0;
  std::string story;      // what was done and what each rank said
  std::string violation;  // of which law; empty: of none
  bool all_well = false;  // every rank came to its end
  int named = 0;          // ranks that named a culprit
  std::int64_t steps = 0;
  double slowest = 0;  // virtual seconds from the deadline of an operation to the end of its rank
};

// The same for the same seed.
[[nodiscard]] Outcome simulate(std::uint64_t seed);

}  // namespace shiplap::simulation
