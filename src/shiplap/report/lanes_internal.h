// Shared by lanes.cc (layout of the boxes) and lanes_drawing.cc (SVG).
#pragma once

#include "shiplap/report/lanes.h"

namespace shiplap::report {

inline constexpr double kWidestLanes = 1050;  // pixels that the lanes take on a wide screen

struct DrawnBoxes {
  LaneBoxes computation;
  LaneBoxes communication;
};

[[nodiscard]] Html draw(const Lanes& lanes, const DrawnBoxes& boxes);

}  // namespace shiplap::report
