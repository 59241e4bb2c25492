// Shared by the tests of this module: a system on which times can be computed by hand.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>

#include "shiplap/hardware/system.h"
#include "shiplap/plan/text.h"
#include "shiplap/sim/replay.h"

namespace shiplap::sim {

// Ranks 2k and 2k+1 are neighbours: a message takes 1 s and 10 B/s; between others 2 s and 5 B/s.
// Of the buffer of n ranks an all_reduce moves 2 (1 - 1/n), all_gather and reduce_scatter half of
// that. Memory gives 100 B/s, the host's 10 B/s; matrices 1000 flop/s, vectors 100 flop/s.
inline hardware::System slow_system() {
  hardware::System system = hardware::zero_cost_system();
  system.name = "slow";
  system.mem1.peak = {100};
  system.mem2.peak = {10};
  system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {1000}});
  system.vector.speeds.fill(hardware::Processor::Speed{.peak = {100}});
  const hardware::Network near{.bandwidth = {10},
                               .size = 2,
                               .latency = {1},
                               .reduce_scatter = {1, -1},
                               .all_gather = {1, -1},
                               .all_reduce = {2, -1}};
  hardware::Network far = near;
  far.bandwidth = {5};
  far.size = std::int64_t{1} << 20;
  far.latency = {2};
  system.networks = {near, far};
  return system;
}

inline Replay replayed(std::string_view text, Bytes eager_limit = {}) {
  return replay(plan::parse_text("shiplap-plan 1\n" + std::string(text), "test.plan"),
                {.system = slow_system(), .eager_limit = eager_limit});
}

// The event of an operation. Fails the test if there is none.
inline trace::Event event_of(const Replay& replay, int rank, int operation) {
  for (const trace::Event& event : replay.trace.ranks[rank].events) {
    if (event.operation == operation) return event;
  }
  ADD_FAILURE() << "rank " << rank << " has no event for operation " << operation;
  return {};
}

struct Span {
  double begin = 0;
  double end = 0;
  friend bool operator==(const Span&, const Span&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Span& span) {
    return out << span.begin << " to " << span.end;
  }
};

inline Span span_of(const Replay& replay, int rank, int operation) {
  const trace::Event event = event_of(replay, rank, operation);
  return {event.time.value, event.end().value};
}

}  // namespace shiplap::sim
