// One overlapped product really carried out, beside its parts, and compared: what `shiplap overlap
// --run` does.
#pragma once

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/overlap/study.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

struct OverlapTrialOptions {
  int rounds = 9;       // of which each measures all four, in turn; one before them is not counted
  bool traces = false;  // whether a step is traced, after the rounds
  Progress progress = Progress::threads;
};

// All ranks together; `problem.ranks` is their number. All get the same times; where it was
// measured is left open. Throws comm::Failure and what OverlappedProduct throws.
[[nodiscard]] overlap::Measurement try_overlap(comm::Communicator& world,
                                               const overlap::Choice& choice,
                                               const overlap::Problem& problem,
                                               const OverlapTrialOptions& options);

// The memory that all ranks together need for it.
[[nodiscard]] double overlap_trial_bytes(const overlap::Choice& choice,
                                         const overlap::Problem& problem);

}  // namespace shiplap::run
