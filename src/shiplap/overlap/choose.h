// Which way to hide the communication of a product is the fastest, and does it pay at all?
//
//   const Machine machine = machine_of(system, Type::all_gather, problem);
//   const Chosen chosen = choose(Type::all_gather, problem, machine);
//   const plan::Plan plan = make_plan(chosen.choice, chosen.problem);
//   chosen.why;  // "ring_exchange in 4 chunks: 1.02 ms instead of 1.38 ms one after the other"
//
// Every way is followed through in closed form: which message leaves when, and which tile waits for
// it. Where no way is clearly faster than one after the other, that is chosen.
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

// What the parts of a product take on a machine, for one problem, on the rank that has most to do.
struct Machine {
  std::string name;
  // So many rows times the weights of the rank.
  std::function<Seconds(double rows)> tile;
  // How long a message keeps the link busy, and how much later it is there.
  std::function<Seconds(double bytes)> message;
  Seconds latency;
  // A link that was idle is faster at first: by this share of what it takes, until so much is won.
  double burst_share = 0;
  Seconds burst;
  // A collective on a buffer of so many bytes in all, with the sums that it makes.
  std::function<Seconds(CollectiveKind kind, double bytes)> collective;
  // Of that time, what a product beside it loses.
  double collective_share = 0;
  // To take so many rows of sums over, and to add them to others; on a stream beside the product,
  // or by who multiplies.
  std::function<Seconds(double rows)> cast;
  std::function<Seconds(double rows)> add;
  bool adds_beside = false;
  // What the processor that multiplies has to do for a byte that is sent or received.
  double processor_seconds_per_byte = 0;
  Seconds first;   // to read weights for the first time
  Seconds step;    // beside all of it
  Seconds piece;   // beside each tile and its messages
  Seconds launch;  // of a tile that is not joined to the one before
};

// Throws InputError D602 if the system does not know the type.
[[nodiscard]] Machine machine_of(const hardware::System& system, Type type, const Problem& problem);
// Throws InputError D815 if products of the type were not measured.
[[nodiscard]] Machine machine_of(const Calibration& calibration, Type type, const Problem& problem);

// How long a problem in the chunks that it says takes in this way. Not bulk.
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
  Problem problem;  // with the chunks to cut it into
  Seconds time;
  Seconds serial;                     // one after the other
  Seconds product;                    // alone
  Seconds communication;              // alone
  std::string why;                    // one line
  std::vector<Candidate> candidates;  // the fastest first

  [[nodiscard]] bool overlaps() const { return choice.method != Method::none; }
};

// The chunks that the problem says do not matter. Throws InputError D800, D801.
[[nodiscard]] Chosen choose(Type type, const Problem& problem, const Machine& machine);

// "ring_exchange in 4 tapered chunks"
[[nodiscard]] std::string to_string(const Candidate& candidate);

}  // namespace shiplap::overlap
