// Thousands of jobs with injected faults: no invariant is violated. SHIPLAP_SIMULATED_FAULTS is the
// number of faults, SHIPLAP_SIMULATION_SEED the first seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "job.h"

namespace shiplap::simulation {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, IsTheSameForTheSameSeed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(simulate(seed).log, simulate(seed).log);
  }
}

TEST(Simulation, NoFaultViolatesAnInvariant) {
  const std::uint64_t faults = from_environment("SHIPLAP_SIMULATED_FAULTS", 20'000);
  std::uint64_t seed = from_environment("SHIPLAP_SIMULATION_SEED", 1);
  std::uint64_t done = 0;
  std::uint64_t jobs = 0;
  std::uint64_t well = 0;
  std::uint64_t named = 0;
  std::uint64_t broken = 0;
  double slowest = 0;
  std::int64_t steps = 0;
  const std::uint64_t most = from_environment("SHIPLAP_SIMULATION_BROKEN", 20);
  for (; done < faults && broken < most; ++seed, ++jobs) {
    const Outcome outcome = simulate(seed);
    done += static_cast<std::uint64_t>(outcome.faults);
    well += outcome.all_well ? 1 : 0;
    named += static_cast<std::uint64_t>(outcome.named);
    steps = std::max(steps, outcome.steps);
    slowest = std::max(slowest, outcome.slowest);
    if (outcome.violation.empty()) continue;
    ++broken;
    ADD_FAILURE() << outcome.violation << "\n" << outcome.log;
  }
  std::cout << done << " faults in " << jobs << " jobs, of which " << well
            << " completed; a culprit was named " << named << " times; at most " << slowest
            << " s after a timeout, in " << steps << " steps\n";
}

}  // namespace
}  // namespace shiplap::simulation
