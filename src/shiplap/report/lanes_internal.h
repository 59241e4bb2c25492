// What finding the boxes of lanes and drawing them share.
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
