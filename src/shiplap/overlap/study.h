// Predicts the time of an overlapped GEMM on a system, how much of its communication is hidden, and
// the lower bound. All times are from plans replayed by `sim`; see docs/overlap/methods.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/overlap/steps.h"
#include "shiplap/trace/trace.h"

namespace shiplap::overlap {

// Times of the slowest rank.
struct Times {
  Seconds gemm;           // G: not split, without communication
  Seconds communication;  // C: all communication of the plan, without computation
  Seconds serial;         // without overlap: the method `none`
  Seconds overlapped;     // T

  [[nodiscard]] Seconds lower_bound()
      const;  // max(G, C): with the same G and C, no method is faster
  [[nodiscard]] double relative_to_serial() const;  // T / serial
  [[nodiscard]] double efficiency() const;          // max(G, C) / T
  // (G + C - T) / min(G, C): 1 means that all is hidden. Nothing if G or C is 0.
  [[nodiscard]] std::optional<double> hidden() const;
};

struct Prediction {
  std::string system;  // its name
  Times times;
  Seconds tiles;  // the GEMM in tiles, without communication
  Seconds bound;  // see method_bound()
  trace::Trace trace;
  trace::Trace serial_trace;
  int last_rank = 0;             // the rank that ends last,
  std::vector<TimedStep> steps;  // and its steps
};

// Throws InputError D632 if the plan is too large to replay.
void check_replayable(const Choice& choice, const Problem& problem);

// Sends of a rank are serialized in plan order, as on one link: `sim` does not model contention.
// Throws InputError D8xx, D602, D632.
[[nodiscard]] Prediction predict(const Choice& choice, const Problem& problem,
                                 const hardware::System& system);

// Returns the lower bound of a method for equal chunks: work before the first send or after the
// last receive cannot be hidden.
[[nodiscard]] Seconds method_bound(const Choice& choice, const Problem& problem,
                                   const Times& alone);

// One candidate and its times.
struct Compared {
  Choice choice;
  int chunks = 1;
  Times times;
};
// All candidates on a system, the fastest first.
struct Comparison {
  Problem problem;
  std::string system;  // its name
  std::vector<Compared> candidates;
};
// Compares all methods for `choice.type`, atomic as in `choice`, with each of these chunk counts.
// Without bulk, which computes another GEMM.
[[nodiscard]] Comparison compare(const Choice& choice, const Problem& problem,
                                 const hardware::System& system, const std::vector<int>& chunks);

// Returns a system on which the GEMM alone and the communication alone take these times, and other
// computation none: the prediction if both do not interfere.
struct StandaloneTimes {
  Seconds gemm;
  Seconds communication;
};
[[nodiscard]] hardware::System calibrated_system(const Choice& choice, const Problem& problem,
                                                 const StandaloneTimes& alone);

// Statistics of the slowest rank over the rounds.
struct Spread {
  Seconds median;
  Seconds min;
  Seconds max;
};

// The benchmark of an overlapped GEMM: see run/overlap_benchmark.h.
struct Measurement {
  Spread gemm;           // not split, without communication
  Spread communication;  // of the overlap, without GEMM and sums
  Spread serial;         // without overlap
  Spread overlapped;
  // The largest difference between the last two, relative to the largest value, and the tolerance,
  // since they round at different places.
  double difference = 0;
  double tolerance = 0;
  std::string gemm_backend;  // as kernels::LinearKernel::backend_name()
  // On rank 0, if requested: the traced step of median duration.
  trace::Trace trace;
  std::string backend;  // "threads", "mpi"
  bool polled = false;  // no progress thread
  int rounds = 0;
  int cores = 0;  // of this machine; 0: unknown

  [[nodiscard]] Times times() const;  // medians
  [[nodiscard]] Seconds noise() const { return overlapped.max - overlapped.min; }
  [[nodiscard]] bool is_right() const { return difference <= tolerance; }
};

// The results for one GEMM: a choice, a comparison, times, or a choice and times. `calibrated` is
// set only with `measured`.
struct Study {
  Choice choice;
  Problem problem;
  std::optional<Chosen> chosen;  // if the method was
  std::optional<Comparison> comparison;
  std::optional<Prediction> predicted;   // for a machine
  std::optional<Prediction> calibrated;  // from what was measured
  std::optional<Measurement> measured;

  [[nodiscard]] bool has_times() const { return predicted || calibrated; }
  // The prediction whose steps are listed.
  [[nodiscard]] const Prediction& listed() const { return predicted ? *predicted : drawn(); }
  // The prediction whose steps are drawn: with a measurement, the calibrated one.
  [[nodiscard]] const Prediction& drawn() const;
};

}  // namespace shiplap::overlap
