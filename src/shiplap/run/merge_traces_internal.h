// Merges the traces of the ranks of one step into one: on one clock, and without the time in which
// communication only waits.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/plan/link.h"
#include "shiplap/plan/plan.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/local_clock_internal.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

struct RankStep {
  StepResult result;
  std::uint64_t clock = 0;             // LocalClock::identity
  std::vector<RoundTrip> round_trips;  // with rank 0; needed unless it has the clock of rank 0
};

// REQUIRES: `linked` is the plan that the ranks executed, and all traced it.
[[nodiscard]] trace::Trace merge_traces(const plan::LinkedProgram& linked,
                                        std::vector<RankStep> ranks);

// Moves the begin of each event of communication to when the last of its partners had entered it
// (but not past its own end, nor past the end of an event that needed its data), as in a
// simulation: before, it waited. REQUIRES: as above; the events are on one clock.
void remove_waiting(const plan::LinkedProgram& linked, trace::Trace& trace);

// gather_trace() with another clock than local_clock(). REQUIRES: `result` has its times.
[[nodiscard]] trace::Trace gather_trace(comm::Communicator& world, const plan::Plan& plan,
                                        const StepResult& result, const LocalClock& clock);

}  // namespace shiplap::run
