// What the parts of an overlap take on a machine, as measured on it: the constants of choose().
//
//   {"shiplap": "calibration 1", "machine": "2 ranks, mpi", "ranks": 2, ...}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/operation.h"

namespace shiplap::overlap {

struct Calibration {
  // Rows times weights: a part for every call, a part for reading the weights, which a call does
  // once for every 128 rows or fewer, and a part for every flop. The first time that weights are
  // read they come from further away.
  struct Product {
    DType type = DType::bf16;
    Seconds call;
    double seconds_per_weight_byte = 0;
    double seconds_per_flop = 0;
    double first_seconds_per_weight_byte = 0;  // beside the other
    // Of a reduce_scatter of such numbers, for a byte of the whole buffer, beside what an exchange
    // of as much takes.
    double scatter_seconds_per_byte = 0;
    friend bool operator==(const Product&, const Product&) = default;
  };
  std::string machine;          // for people
  int ranks = 0;                // on which it was measured
  Seconds latency;              // of a message
  Seconds message;              // for which the link is busy with a message, whatever its size
  double seconds_per_byte = 0;  // for which it is busy with a byte, both ways at once
  // What a link that was idle takes at once, and how much less a byte of it takes.
  double burst_bytes = 0;
  double burst_seconds_per_byte = 0;
  double processor_seconds_per_byte = 0;  // that a product beside it loses
  double sum_seconds_per_byte = 0;        // to add numbers, of bytes read and written
  Seconds collective;                     // of nothing
  // Of the time of a collective on a thread of its own: what a product beside it loses.
  double collective_share = 0;
  Seconds step;   // of a plan, beside what it does
  Seconds piece;  // of a tile and its messages, beside what they take
  std::vector<Product> products;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

[[nodiscard]] Json to_json(const Calibration& calibration);
// Throws InputError D815 if it is none, with what is wrong.
[[nodiscard]] Calibration calibration_from(const Json& json, std::string_view file);

}  // namespace shiplap::overlap
