// One overlapped product really carried out, beside its parts, and compared: what `shiplap overlap
// --run` does.
#pragma once

#include <string>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/execute.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

struct OverlapTrialOptions {
  int rounds = 9;       // of which each measures all four, in turn; one before them is not counted
  bool traces = false;  // whether a step is traced, after the rounds
  Progress progress = Progress::threads;
};

// Of the slowest rank, over the rounds.
struct Spread {
  Seconds median;
  Seconds least;
  Seconds most;
};

struct OverlapTrialResult {
  Spread product;        // in one piece, nothing is sent
  Spread communication;  // of the overlap, nothing is multiplied or added
  Spread serial;         // one after the other
  Spread overlapped;
  // How far the results of the two last are from each other, at most, over the largest number; and
  // how far they may be, since they round in other places.
  double difference = 0;
  double tolerance = 0;
  std::string multiplied_by;  // as kernels::LinearKernel::by()
  // On rank 0, if asked for: of a few steps that are traced, the one of median length.
  trace::Trace trace;
};

// All ranks together; `problem.ranks` is their number. All get the same times. Throws comm::Failure
// and what OverlappedProduct throws.
[[nodiscard]] OverlapTrialResult try_overlap(comm::Communicator& world,
                                             const overlap::Choice& choice,
                                             const overlap::Problem& problem,
                                             const OverlapTrialOptions& options);

// The memory that all ranks together need for it.
[[nodiscard]] double overlap_trial_bytes(const overlap::Choice& choice,
                                         const overlap::Problem& problem);

}  // namespace shiplap::run
