// Simulates a plan in virtual time: when does each operation run, on a given system? Every
// operation of every rank is replayed, in the order that streams, `after`, messages and collectives
// impose, and no other. docs/simulate.md states the rules of time exactly.
//
// The times of a strategy are those of the replay of the plan that it recorded.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/progress.h"
#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"
#include "shiplap/trace/trace.h"

namespace shiplap::sim {

struct ReplayOptions {
  hardware::System system;
  // Sends of up to this size are eager: they complete when they start. 0: every send is a
  // rendezvous and waits for its receive.
  Bytes eager_limit;
  std::int64_t operations = 50'000'000;            // of all ranks together; beyond that, D632
  std::int64_t iterations = plan::kMaxIterations;  // likewise, of loops that are expanded
  // Replays one of each class of ranks that provably take the same times: the trace is folded
  // (Trace::representatives), and only representatives count towards the limits. A plan that cannot
  // be executed is replayed in full if that is within the limits.
  bool fold = false;
  ProgressCallback progress;
};

struct Replay {
  // For every rank, or every representative: the events that completed, in program order, and its
  // memory over time.
  trace::Trace trace;
  Seconds end;  // when the last operation was complete
  // Mismatches between matched operations (D631; the replay continues, and each takes the time that
  // it takes alone); a deadlock (D630), with a note for each of the first ranks that hang. Empty if
  // the step completed.
  std::vector<Diagnostic> problems;
};

// Takes time in proportion to the operations of the ranks that are replayed. Throws InputError if
// the plan is invalid (D108, D2xx) or too large (D632), or if the system has no speed for a
// computation (D602).
[[nodiscard]] Replay replay(const plan::Plan& plan, const ReplayOptions& options);

}  // namespace shiplap::sim
