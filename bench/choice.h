// The quality of the choices of overlap::choose(): the part `choice` of bench_overlap.
#pragma once

#include <string>

#include "shiplap/base/json.h"

namespace shiplap {

struct ChoiceOptions {
  std::string rate = "1000mbit";  // of the link between the two hosts
  std::string seconds = "1.5";    // for each shape, about
  bool prints = true;             // a line for each shape
};

// Starts bench_choice_worker on two hosts, which needs root. Returns all shapes, with the choice
// and its reason, and the worst value of each metric.
[[nodiscard]] Json measured_choices(const ChoiceOptions& options);

}  // namespace shiplap
