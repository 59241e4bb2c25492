// Fits a hardware file to measured times: the constants of System that predict them best.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/base/units.h"

namespace shiplap::hardware {

// An operation of this amount, in flop or bytes, and how long it took.
struct TimedAmount {
  double amount = 0;
  Seconds time;
};

struct NetworkSamples {
  std::string kind;              // "sockets between hosts"
  std::int64_t size = 2;         // ranks that it connects
  std::int64_t group = 2;        // ranks of a collective
  std::vector<TimedAmount> p2p;  // bytes, in one direction
  // By bytes of the whole buffer: the output of an all_gather, the input of a reduce_scatter.
  std::vector<TimedAmount> all_reduce;
  std::vector<TimedAmount> all_gather;
  std::vector<TimedAmount> reduce_scatter;
};

// What was measured on one machine, where every rank is a device with one core. REQUIRES: every
// list has samples, of amounts above 0, and there is a network; the inner ones are smaller.
struct SystemSamples {
  std::string source;               // who measured what; for people
  std::vector<TimedAmount> matrix;  // flop of GEMMs in f32
  std::vector<TimedAmount> vector;  // flop of updates in f32
  std::vector<TimedAmount> mem1;    // bytes that copies read and write
  std::vector<TimedAmount> mem2;    // bytes of loaded weights
  Bytes memory;                     // of a rank
  Seconds launch;                   // from one operation to the next
  std::int64_t ranks_per_node = 1;
  std::vector<NetworkSamples> networks;  // the innermost first
};

// Returns a file that parse_system() reads. Every unit takes a fixed time and one per flop or byte;
// a network has one latency, and for each collective the factor of its bytes (see Network). All by
// least squares of relative errors, none below 0.
[[nodiscard]] Json fit_system(const SystemSamples& samples);

}  // namespace shiplap::hardware
