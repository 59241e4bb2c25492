// The clock of this process, and how far it is from that of rank 0.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/run/completion_tracker_internal.h"

namespace shiplap::run {

struct LocalClock {
  // Ranks with the same number read the same clock: threads, and processes on one host. 0: a clock
  // of its own.
  std::uint64_t identity = 0;
  Seconds skew;  // 0, except in tests

  [[nodiscard]] Seconds now() const { return {CompletionTracker::now() + skew.value}; }
};

// The monotonic clock of Linux is one for all processes since a boot, except in time namespaces,
// which shift it.
[[nodiscard]] LocalClock local_clock();

// A message of rank 0 to another rank and its reply.
struct RoundTrip {
  Seconds sent;      // of the clock of rank 0
  Seconds replied;   // of the clock of the other rank
  Seconds received;  // of the clock of rank 0
};

// Collective. Rank 0 measures round trips with every other rank (Cristian 1989). Returns those of
// each rank, by rank, on rank 0.
[[nodiscard]] std::vector<std::vector<RoundTrip>> measure_round_trips(comm::Communicator& world,
                                                                      const LocalClock& clock);

}  // namespace shiplap::run
