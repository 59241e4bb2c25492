// Which range of what lies where: a lane per rank, with a box for every range in it.
//
// The boxes of one group (a document) have one colour of the ramp, wherever they are, and the
// number of the group where there is room for it. Each block has a scale of its own, which its
// caption tells; a mark in one can show how long another is. Pointing at a box tells its facts and
// shows its whole group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/report/html.h"

namespace shiplap::report {

struct Box {
  std::int64_t begin = 0;  // in the lane
  std::int64_t length = 0;
  std::int64_t pale = 0;   // so much of the beginning is drawn pale
  std::int64_t group = 0;  // below Ranges::groups
  std::string label;       // of the group
  std::string facts;       // a few lines

  [[nodiscard]] std::int64_t end() const { return begin + length; }
};

struct Lane {
  std::string name;
  std::vector<Box> boxes;  // in order, none over another
  bool rule_above = false;
};

struct LaneBlock {
  std::string title;
  std::string names;  // what the names of the lanes are: "rank"
  std::vector<Lane> lanes;
  std::int64_t mark = 0;  // a dashed line there, if it is above 0
};

struct Ranges {
  std::vector<LaneBlock> blocks;
  std::int64_t groups = 1;
  std::string unit = "tokens";
  std::int64_t most_boxes = 20'000;  // above, narrow ones are drawn together
};

// Neighbours narrower than half a pixel drawn as one box, if there are more than `most_boxes`;
// should that not be enough, twice as wide, and so on. Boxes without length are left out.
struct MergedRanges {
  Ranges ranges;
  std::int64_t merged = 0;   // boxes that are drawn together with others
  double narrower_than = 0;  // pixels
};
[[nodiscard]] MergedRanges merged(const Ranges& ranges);

[[nodiscard]] Html to_html(const Ranges& ranges);

}  // namespace shiplap::report
