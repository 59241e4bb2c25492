// When does each operation of a plan run, on a given system? The plan is replayed in virtual time:
// every rank, every operation, with the order that streams, `after` and meetings with other ranks
// impose, and nothing else. docs/simulate.md states the rules of time exactly.
//
// The times of strategies are those of the replay of what they recorded.
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
  // A send of so many bytes or less is complete at once, whether or not anybody receives it. 0:
  // every send waits for its receive.
  Bytes eager_up_to;
  std::int64_t operations = 50'000'000;            // of all ranks together; beyond that, D632
  std::int64_t iterations = plan::kMaxIterations;  // likewise, of loops that are expanded
  ProgressCallback progress;
};

struct Replay {
  // Of every rank the events that are complete, as listed, and its memory by time.
  trace::Trace trace;
  Seconds end;  // when the last operation was complete
  // Operations that meet and do not fit (D631; time goes on, as if each took what it takes alone);
  // a deadlock (D630), with notes that say of the first stuck ranks what each waits for. Empty: the
  // step was done.
  std::vector<Diagnostic> problems;
};

// Takes time in proportion to the operations of all ranks. Throws InputError where the plan has no
// meaning (D108, D2xx), is too large (D632), or computes in a way the system does not know (D602).
[[nodiscard]] Replay replay(const plan::Plan& plan, const ReplayOptions& options);

}  // namespace shiplap::sim
