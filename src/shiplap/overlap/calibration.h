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
  // once for every 128 rows or fewer, and a part for every flop.
  struct Product {
    plan::ElementType type = plan::ElementType::bf16;
    Seconds call;
    double seconds_per_weight_byte = 0;
    double seconds_per_flop = 0;
    friend bool operator==(const Product&, const Product&) = default;
  };
  std::string machine;          // for people
  int ranks = 0;                // on which it was measured
  Seconds latency;              // of a message
  Seconds message;              // for which the link is busy with a message, whatever its size
  double seconds_per_byte = 0;  // for which it is busy with a byte, both ways at once
  double processor_seconds_per_byte = 0;  // that a product beside it loses
  double sum_seconds_per_byte = 0;        // to add numbers, of bytes read and written
  Seconds collective;                     // of nothing
  Seconds step;                           // of a plan, beside what it does
  Seconds piece;                          // of a tile and its messages, beside what they take
  std::vector<Product> products;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

[[nodiscard]] Json to_json(const Calibration& calibration);
// Throws InputError D815 if it is none, with what is wrong.
[[nodiscard]] Calibration calibration_from(const Json& json, std::string_view file);

}  // namespace shiplap::overlap
