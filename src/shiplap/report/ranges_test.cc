#include "shiplap/report/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shiplap::report {
namespace {

using testing::HasSubstr;
using testing::Not;

// Lanes with `count` boxes of length 1 and a last one that is long.
Ranges many(int lanes, int count) {
  Ranges ranges{.blocks = {{.title = "block", .names = "rank"}}, .groups = count + 1};
  for (int lane = 0; lane < lanes; ++lane) {
    Lane& made = ranges.blocks[0].lanes.emplace_back(Lane{.name = std::to_string(lane)});
    for (int i = 0; i < count; ++i) {
      made.boxes.push_back({.begin = i, .length = 1, .group = i, .label = std::to_string(i)});
    }
    made.boxes.push_back({.begin = count, .length = count, .group = count, .label = "last"});
  }
  return ranges;
}

TEST(Merged, LeavesFewBoxesAlone) {
  const MergedRanges result = merged(many(2, 5000));
  EXPECT_EQ(result.merged, 0);
  EXPECT_EQ(result.ranges.blocks[0].lanes[0].boxes.size(), 5001U);
}

TEST(Merged, LeavesNoMoreBoxesThanAllowedAndNoGap) {
  for (const int count : {100, 1000, 10'000}) {
    Ranges ranges = many(3, count);
    ranges.max_boxes = 60;
    const MergedRanges result = merged(ranges);
    std::size_t boxes = 0;
    for (const Lane& lane : result.ranges.blocks[0].lanes) {
      boxes += lane.boxes.size();
      std::int64_t end = 0;
      for (const Box& box : lane.boxes) {
        EXPECT_EQ(box.begin, end);
        end = box.end();
      }
      EXPECT_EQ(end, 2 * count);
      EXPECT_EQ(lane.boxes.back().label, "last");
    }
    EXPECT_LE(boxes, 60U);
    EXPECT_EQ(result.merged, 3 * count);
  }
}

TEST(RangesHtml, SaysWhatIsDrawnTogether) {
  Ranges ranges = many(1, 1000);
  EXPECT_THAT(to_html(ranges).markup, Not(HasSubstr("drawn together")));
  ranges.max_boxes = 500;
  EXPECT_THAT(to_html(ranges).markup, HasSubstr("are drawn together"));
}

TEST(RangesHtml, LeavesOutWhatIsEmptyAndEscapesTheRest) {
  Ranges ranges{
      .blocks = {{.title = "<t>",
                  .names = "<n>",
                  .lanes = {{.name = "<l>",
                             .boxes = {{.label = "empty", .facts = "empty"},
                                       {.length = 4, .label = "<b>", .facts = "<f>"}}}}}}};
  const std::string markup = to_html(ranges).markup;
  EXPECT_THAT(markup, Not(HasSubstr("empty")));
  for (const char* text : {"<t>", "<n>", "<l>", "<b>", "<f>"})
    EXPECT_THAT(markup, Not(HasSubstr(text)));
  for (const char* text : {"&lt;t", "&lt;n", "&lt;l", "&lt;b", "&lt;f"}) {
    EXPECT_THAT(markup, HasSubstr(text));
  }
}

}  // namespace
}  // namespace shiplap::report
