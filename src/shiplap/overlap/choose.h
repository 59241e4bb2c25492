// Chooses the fastest way to overlap a GEMM with its communication, if overlapping pays.
//
//   const Machine machine = machine_of(system, Type::all_gather, problem);
//   const Chosen chosen = choose(Type::all_gather, problem, machine);
//   const plan::Plan plan = make_plan(chosen.choice, chosen.problem);
//   chosen.why;  // "ring_exchange in 4 chunks: 1.02 ms instead of 1.38 ms serial on .."
//
// Every candidate is estimated with a cost model: when each message is sent, and which tile waits
// for it. If no candidate is clearly faster than no overlap, that is chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {

// Costs of single operations on a machine, for one problem, on the rank with the largest share.
struct Machine {
  std::string name;
  // GEMM of `rows` rows with the local weights.
  std::function<Seconds(double rows)> tile;
  // Time that a message occupies the link, and its latency.
  std::function<Seconds(double bytes)> message;
  Seconds latency;
  // An idle link is faster at first: transfers take this fraction less, until `burst` is saved.
  double burst_share = 0;
  Seconds burst;
  // A collective on a global buffer of `bytes` bytes, including its reductions.
  std::function<Seconds(CollectiveKind kind, double bytes)> collective;
  // The fraction of that time that a concurrent GEMM loses.
  double collective_share = 0;
  // Converting rows of sums, and adding them. `adds_in_parallel`: on another stream than the GEMM.
  std::function<Seconds(double rows)> cast;
  std::function<Seconds(double rows)> add;
  bool adds_in_parallel = false;
  // Time that the GEMM's processor spends per byte sent or received.
  double processor_seconds_per_byte = 0;
  Seconds first;          // extra cost of the first read of the weights
  Seconds step;           // overhead of a step
  Seconds tile_overhead;  // of a tile and its messages
  Seconds launch;         // of a tile that is not joined to the previous one
  // Whether joined tiles that are ready are multiplied together, up to joined_rows().
  bool merges_tiles = false;
};

// Throws InputError D602 if the system has no speed for the dtype.
[[nodiscard]] Machine machine_of(const hardware::System& system, Type type, const Problem& problem);
// Throws InputError D815 if the dtype is not calibrated.
[[nodiscard]] Machine machine_of(const Calibration& calibration, Type type, const Problem& problem);

// Returns the estimated time of a choice, with the chunks of the problem. REQUIRES: not bulk.
[[nodiscard]] Seconds estimate(const Choice& choice, const Problem& problem,
                               const Machine& machine);

struct Candidate {
  Choice choice;
  int chunks = 1;
  Cut cut = Cut::even;
  Seconds time;
};

struct Chosen {
  Choice choice;
  Problem problem;  // with the chosen chunks
  Seconds time;
  Seconds serial;                     // without overlap
  Seconds gemm;                       // alone
  Seconds communication;              // alone
  std::string why;                    // one line
  std::vector<Candidate> candidates;  // the fastest first

  [[nodiscard]] bool overlaps() const { return choice.method != Method::none; }
};

// Ignores the chunks of the problem. Throws InputError D800, D801.
[[nodiscard]] Chosen choose(Type type, const Problem& problem, const Machine& machine);

// "ring_exchange in 4 tapered chunks"
[[nodiscard]] std::string to_string(const Candidate& candidate);

}  // namespace shiplap::overlap
