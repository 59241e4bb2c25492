// Measured costs of the operations of an overlap on a machine: the constants of choose().
//
//   {"shiplap": "calibration 3", "machine": "2 ranks, mpi", "ranks": 2, ...}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/operation.h"

namespace shiplap::overlap {

struct Calibration {
  // The cost of a GEMM: per call, per byte of weights (read once per 128 rows or fewer), and per
  // flop. The first read of the weights misses the cache.
  struct GemmCost {
    DType type = DType::bf16;
    Seconds call;
    double seconds_per_weight_byte = 0;
    double seconds_per_flop = 0;
    double first_seconds_per_weight_byte = 0;  // in addition
    // Of a reduce_scatter in this dtype, per byte of the global buffer, in addition to the
    // exchange.
    double scatter_seconds_per_byte = 0;
    friend bool operator==(const GemmCost&, const GemmCost&) = default;
  };
  std::string machine;          // description
  int ranks = 0;                // of the measurement
  Seconds latency;              // of a message
  Seconds message;              // occupancy of the link per message
  double seconds_per_byte = 0;  // occupancy per byte, in both directions at once
  // Bytes that an idle link buffers, and how much less such a byte takes.
  double burst_bytes = 0;
  double burst_seconds_per_byte = 0;
  double processor_seconds_per_byte = 0;  // that a concurrent GEMM loses
  double sum_seconds_per_byte = 0;        // of additions, per byte read and written
  Seconds collective;                     // of an empty collective
  // The fraction of the time of a collective on its own thread that a concurrent GEMM loses.
  double collective_share = 0;
  Seconds step;           // overhead of a step of a plan
  Seconds tile_overhead;  // of a tile and its messages
  Seconds launch;         // of a tile that is a call of its own, in addition
  std::vector<GemmCost> gemms;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

[[nodiscard]] Json to_json(const Calibration& calibration);
// Throws InputError D815, with the reason, if it is not a calibration.
[[nodiscard]] Calibration calibration_from(const Json& json, std::string_view file);

}  // namespace shiplap::overlap
