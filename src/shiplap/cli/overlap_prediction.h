// How long does an overlapped product take on a system, how much of its communication is hidden,
// and what is the least that could be reached? All times are those of plans replayed by `sim`;
// docs/overlap/methods.md says what each means.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/trace/trace.h"

namespace shiplap::cli {

// Of the slowest rank.
struct OverlapTimes {
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

struct OverlapPrediction {
  std::string system;  // its name
  OverlapTimes times;
  Seconds tiles;  // the product in its tiles, nothing is sent
  Seconds bound;  // see method_bound()
  trace::Trace trace;
  trace::Trace serial_trace;
};

// Throws InputError D632 if its plan is too large to be replayed.
void demand_replayable(const overlap::Choice& choice, const overlap::Problem& problem);

// Messages of a rank leave one after the other, in the order of the plan, as over one link: `sim`
// alone knows no contention. Throws InputError D8xx, D602, D632.
[[nodiscard]] OverlapPrediction predict_overlap(const overlap::Choice& choice,
                                                const overlap::Problem& problem,
                                                const hardware::System& system);

// The least that a method can take if all pieces are equal: what must be done before anything can
// be sent, or after everything has arrived, is not hidden.
[[nodiscard]] Seconds method_bound(const overlap::Choice& choice, const overlap::Problem& problem,
                                   const OverlapTimes& alone);

// One way to hide it, and how long that takes.
struct OverlapCandidate {
  overlap::Choice choice;
  int chunks = 1;
  OverlapTimes times;
};
// Every method that there is for `choice.type`, atomic or not as `choice` says, each with these
// numbers of chunks; the fastest first. Not bulk, which makes another product.
[[nodiscard]] std::vector<OverlapCandidate> compare_overlaps(const overlap::Choice& choice,
                                                             const overlap::Problem& problem,
                                                             const hardware::System& system,
                                                             const std::vector<int>& chunks);

// A system on which the product alone and the communication alone take these times, every other
// computation none: what the plan promises if both go on undisturbed.
struct TimesAlone {
  Seconds product;
  Seconds communication;
};
[[nodiscard]] hardware::System calibrated(const overlap::Choice& choice,
                                          const overlap::Problem& problem, const TimesAlone& alone);

}  // namespace shiplap::cli
