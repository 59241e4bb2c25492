// What finding the boxes of lanes and drawing them share.
#pragma once

#include <string>
#include <string_view>

#include "shiplap/report/lanes.h"

namespace shiplap::report {

inline constexpr double kWidestLanes = 1050;  // pixels that the lanes take on a wide screen

struct DrawnBoxes {
  LaneBoxes computation;
  LaneBoxes communication;
};

// What an event is, in the words of its trace: "send, layer 0, samples 4-5".
[[nodiscard]] std::string told(const trace::Event& event);

// All that is told of a box to who points at it.
struct BoxFacts {
  int rank = 0;
  Seconds origin;    // from which times count
  std::string what;  // the event is
};
[[nodiscard]] std::string facts(const LaneBox& box, const BoxFacts& about);

// What stands on a communication: "AG"; "" if it is none of the usual.
[[nodiscard]] std::string_view letters(trace::Kind kind);

[[nodiscard]] Html draw(const Lanes& lanes, const DrawnBoxes& boxes);

}  // namespace shiplap::report
