// How long does an overlapped product take on a system, how much of its communication is hidden,
// and what is the least that could be reached? All times are those of plans replayed by `sim`;
// docs/overlap/methods.md says what each means.
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

// Of the slowest rank.
struct Times {
  Seconds product;        // G: in one piece, nothing is sent
  Seconds communication;  // C: all that the plan sends, nothing is computed
  Seconds serial;         // one after the other: the method `none`
  Seconds overlapped;     // T

  [[nodiscard]] Seconds least() const;     // max(G, C): with the same G and C, no method is faster
  [[nodiscard]] double of_serial() const;  // T / serial
  [[nodiscard]] double least_of_it() const;  // max(G, C) / T
  // (G + C - T) / min(G, C): 1 is all that can be hidden. None if there is nothing to hide.
  [[nodiscard]] std::optional<double> hidden() const;
};

struct Prediction {
  std::string system;  // its name
  Times times;
  Seconds tiles;  // the product in its tiles, nothing is sent
  Seconds bound;  // see method_bound()
  trace::Trace trace;
  trace::Trace serial_trace;
  int last_rank = 0;             // the first rank of those that end last,
  std::vector<TimedStep> steps;  // and what it does
};

// Throws InputError D632 if its plan is too large to be replayed.
void check_replayable(const Choice& choice, const Problem& problem);

// Messages of a rank leave one after the other, in the order of the plan, as over one link: `sim`
// alone knows no contention. Throws InputError D8xx, D602, D632.
[[nodiscard]] Prediction predict(const Choice& choice, const Problem& problem,
                                 const hardware::System& system);

// The least that a method can take if all pieces are equal: what must be done before anything can
// be sent, or after everything has arrived, is not hidden.
[[nodiscard]] Seconds method_bound(const Choice& choice, const Problem& problem,
                                   const Times& alone);

// One way to hide it, and how long that takes.
struct Compared {
  Choice choice;
  int chunks = 1;
  Times times;
};
// Every way for the type of a choice on a system, the fastest first.
struct Comparison {
  Problem problem;
  std::string system;  // its name
  std::vector<Compared> candidates;
};
// Every method that there is for `choice.type`, atomic or not as `choice` says, each with these
// numbers of chunks. Not bulk, which makes another product.
[[nodiscard]] Comparison compare(const Choice& choice, const Problem& problem,
                                 const hardware::System& system, const std::vector<int>& chunks);

// A system on which the product alone and the communication alone take these times, every other
// computation none: what the plan promises if both go on undisturbed.
struct TimesAlone {
  Seconds product;
  Seconds communication;
};
[[nodiscard]] hardware::System calibrated(const Choice& choice, const Problem& problem,
                                          const TimesAlone& alone);

// Of the slowest rank, over the rounds.
struct Spread {
  Seconds median;
  Seconds least;
  Seconds most;
};

// An overlapped product that was carried out, beside its parts: see run/overlap_trial.h.
struct Measurement {
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
  std::string backend;  // "threads", "mpi"
  bool polled = false;  // there was no thread for progress
  int rounds = 0;
  int cores = 0;  // of this machine; 0: not known

  [[nodiscard]] Times times() const;  // medians
  [[nodiscard]] Seconds noise() const { return overlapped.most - overlapped.least; }
  [[nodiscard]] bool is_right() const { return difference <= tolerance; }
};

// All that was found out about one product: a choice, or a comparison, or times, or a choice and
// times. What was calibrated is there only with what was measured.
struct Study {
  Choice choice;
  Problem problem;
  std::optional<Chosen> chosen;  // if the method was
  std::optional<Comparison> comparison;
  std::optional<Prediction> predicted;   // for a machine
  std::optional<Prediction> calibrated;  // from what was measured
  std::optional<Measurement> measured;

  [[nodiscard]] bool has_times() const { return predicted || calibrated; }
  // Whose steps are listed.
  [[nodiscard]] const Prediction& listed() const { return predicted ? *predicted : drawn(); }
  // Whose steps are drawn: beside a measurement, the one that has its scale.
  [[nodiscard]] const Prediction& drawn() const;
};

}  // namespace shiplap::overlap
