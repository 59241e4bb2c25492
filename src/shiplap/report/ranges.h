// Ranges by rank: a lane per rank, with a box for every range.
//
// All boxes of a group (a document) have the same colour of the ramp, and its number as label if it
// fits. Each block has its own scale, stated in its caption; a mark can show the length of another
// block. Pointing at a box shows its tooltip and highlights its group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/report/html.h"

namespace shiplap::report {

struct Box {
  std::int64_t begin = 0;  // in the lane
  std::int64_t length = 0;
  std::int64_t pale = 0;   // length of the first part, which is drawn pale
  std::int64_t group = 0;  // below Ranges::groups
  std::string label;       // of the group
  std::string facts;       // the tooltip, a few lines

  [[nodiscard]] std::int64_t end() const { return begin + length; }
};

struct Lane {
  std::string name;
  std::vector<Box> boxes;  // in order, not overlapping
  bool rule_above = false;
};

struct LaneBlock {
  std::string title;
  std::string names;  // the kind of the lane names: "rank"
  std::vector<Lane> lanes;
  std::int64_t mark = 0;  // position of a dashed line, if above 0
};

struct Ranges {
  std::vector<LaneBlock> blocks;
  std::int64_t groups = 1;
  std::string unit = "tokens";
  std::int64_t max_boxes = 20'000;  // above this, narrow boxes are merged
};

// If there are more than `max_boxes`, merges neighbours narrower than half a pixel; if that is not
// enough, narrower than one pixel, and so on. Omits boxes without length.
struct MergedRanges {
  Ranges ranges;
  std::int64_t merged = 0;   // boxes that were merged with others
  double narrower_than = 0;  // pixels
};
[[nodiscard]] MergedRanges merged(const Ranges& ranges);

[[nodiscard]] Html to_html(const Ranges& ranges);

}  // namespace shiplap::report
