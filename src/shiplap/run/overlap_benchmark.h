// Benchmarks one overlapped GEMM, its GEMM and its communication: `shiplap overlap --run`.
#pragma once

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/overlap/study.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

struct OverlapBenchmarkOptions {
  int rounds = 9;       // after one warm-up; each round measures all four variants
  bool traces = false;  // whether to trace a step after the rounds
  Progress progress = Progress::threads;
};

// Collective. Returns the same times on all ranks; backend, rounds and cores are not filled in.
// Throws comm::Failure and what OverlappedGemm throws. REQUIRES: problem.ranks is the size of
// `world`.
[[nodiscard]] overlap::Measurement benchmark_overlap(comm::Communicator& world,
                                                     const overlap::Choice& choice,
                                                     const overlap::Problem& problem,
                                                     const OverlapBenchmarkOptions& options);

// Returns an estimate of the memory of all ranks together, in bytes.
[[nodiscard]] double overlap_benchmark_bytes(const overlap::Choice& choice,
                                             const overlap::Problem& problem);

}  // namespace shiplap::run
