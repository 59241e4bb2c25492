// What of a machine is shared or slow in a simulation: the options of replay() that differ from the
// default.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/sim/replay.h"

namespace shiplap::sim {

// A straggler's factor, or the share of an adapter that is left.
struct RankFactor {
  std::int64_t rank = 0;
  double factor = 1;
};

// Add them to `options`, for a plan of so many ranks. Throw InputError D003 that names `argument`:
// a rank that the plan does not have, or twice; a factor that is not 1e-6 to 1e6, a share above 1;
// slow links without shared ones.
void add_slow_ranks(std::span<const RankFactor> given, std::int64_t ranks,
                    const std::string& argument, ReplayOptions& options);
void add_slow_links(std::span<const RankFactor> given, std::int64_t ranks,
                    const std::string& argument, ReplayOptions& options);

// "contention between transfers", "2 slow ranks".
[[nodiscard]] std::vector<std::string> describe_conditions(const ReplayOptions& options);

}  // namespace shiplap::sim
