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

// A rank whose computations and copies take `factor` times as long: a straggler.
struct SlowRank {
  std::int32_t rank = 0;
  double factor = 1;
  friend bool operator==(const SlowRank&, const SlowRank&) = default;
};
// A rank whose link into the outermost network, its adapter, has this share of its bandwidth, in
// both directions.
struct SlowLink {
  std::int32_t rank = 0;
  double share = 1;
  friend bool operator==(const SlowLink&, const SlowLink&) = default;
};

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
  // Messages and collectives share the links of the machine (docs/simulate.md).
  bool shares_links = false;
  // One hardware queue for all streams of a rank, as with CUDA_DEVICE_MAX_CONNECTIONS=1: operations
  // start in program order.
  bool one_queue = false;
  // With either, every rank is replayed. REQUIRES: ranks of the plan, each at most once; factors
  // from 1e-6, shares from 1e-6 to 1; slow links only with `shares_links`.
  std::vector<SlowRank> slow_ranks;
  std::vector<SlowLink> slow_links;
  ProgressCallback progress;
};

struct Replay {
  // For every rank, or every representative: the events that completed, in program order, and its
  // memory over time.
  trace::Trace trace;
  Seconds end;  // when the last operation was complete
  // Mismatches between matched operations (D631; the replay continues, and each takes the time that
  // it takes alone); a deadlock (D630), with a note for each of the first ranks that hang; one that
  // only one hardware queue causes (D636). Empty if the step completed.
  std::vector<Diagnostic> problems;
};

// Takes time in proportion to the operations of the ranks that are replayed, but for shared links:
// there, each start and end of a transfer visits those that it shares links with. Throws InputError
// if the plan is invalid (D108, D2xx) or too large (D632), or if the system has no speed for a
// computation (D602).
[[nodiscard]] Replay replay(const plan::Plan& plan, const ReplayOptions& options);

}  // namespace shiplap::sim
