#include "shiplap/report/ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

#include "shiplap/base/units.h"
#include "shiplap/report/ramp.h"

namespace shiplap::report {
namespace {

constexpr double kWidest = 1100;  // pixels that the lanes take on a wide screen
constexpr int kRangesAxis = 20;   // pixels above the lanes
constexpr std::size_t kMaxTallLanes = 24;

// The lane widths from which a label is shown: small screen, paper, wide screen. Their classes in
// the style sheet are t, t2 and t3.
struct RangeLabelWidth {
  double pixels;
  std::string_view label_class;
};
constexpr std::array<RangeLabelWidth, 3> kRangeLabelWidths{
    {{290, "t"}, {600, "t t2"}, {960, "t t3"}}};

std::int64_t longest_lane(const LaneBlock& block) {
  std::int64_t longest = 1;
  for (const Lane& lane : block.lanes) {
    for (const Box& box : lane.boxes) longest = std::max(longest, box.end());
  }
  return longest;
}

std::int64_t box_count(const Ranges& ranges) {
  std::int64_t count = 0;
  for (const LaneBlock& block : ranges.blocks) {
    for (const Lane& lane : block.lanes) count += std::ssize(lane.boxes);
  }
  return count;
}

Box merged_range(std::span<const Box> boxes) {
  Box result = boxes.front();
  if (boxes.size() == 1) return result;
  result.length = boxes.back().end() - result.begin;
  result.pale = 0;
  result.facts = fmt::format("{} neighbouring ranges, from {} to {}, drawn as one", boxes.size(),
                             boxes.front().label, boxes.back().label);
  result.label.clear();
  return result;
}

// Merges neighbours shorter than `least` into boxes of at least that length. Returns the number of
// merged boxes.
std::int64_t merge_lane(Lane& lane, double least) {
  std::vector<Box> kept;
  const std::span<const Box> boxes = lane.boxes;
  std::int64_t vanished = 0;
  for (std::size_t first = 0; first < boxes.size();) {
    std::size_t last = first;
    const auto length = [&] { return static_cast<double>(boxes[last].end() - boxes[first].begin); };
    const auto is_narrow = [&](const Box& box) { return static_cast<double>(box.length) < least; };
    while (length() < least && last + 1 < boxes.size() && is_narrow(boxes[last + 1])) ++last;
    kept.push_back(merged_range(boxes.subspan(first, last - first + 1)));
    if (last > first) vanished += static_cast<std::int64_t>(last - first) + 1;
    first = last + 1;
  }
  lane.boxes = std::move(kept);
  return vanished;
}

// A round tick distance with at most five ticks.
std::int64_t tick_step(std::int64_t longest) {
  for (std::int64_t ten = 1;; ten *= 10) {
    for (const std::int64_t step : {ten, 2 * ten, 5 * ten}) {
      if (longest / step <= 5) return step;
    }
  }
}

std::string tick_text(std::int64_t tokens, std::int64_t step) {
  return step >= 1000 ? with_separators(tokens / 1000) + "k" : with_separators(tokens);
}

class RangesDrawing {
 public:
  explicit RangesDrawing(const Ranges& ranges) : ranges_(ranges) {}

  std::string text() {
    for (const LaneBlock& block : ranges_.blocks) figure(block);
    return std::move(out_);
  }

 private:
  void figure(const LaneBlock& block);
  void names(const LaneBlock& block);
  void axis(int height);
  void box(const Box& box);
  void label(const Box& box, int step);

  [[nodiscard]] double percent(std::int64_t tokens) const {
    return 100 * static_cast<double>(tokens) / static_cast<double>(longest_);
  }
  // The height of a lane of `block`, and the distance between lanes.
  static int thickness(const LaneBlock& block) {
    return block.lanes.size() > kMaxTallLanes ? 12 : 18;
  }
  static int pitch(const LaneBlock& block) { return thickness(block) + 3; }
  static int height(const LaneBlock& block) {
    return kRangesAxis + pitch(block) * static_cast<int>(block.lanes.size());
  }

  template <typename... Values>
  void draw(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  const Ranges& ranges_;
  // Of the current block:
  std::int64_t longest_ = 1;
  int thickness_ = 0;
  std::string out_;
};

void RangesDrawing::names(const LaneBlock& block) {
  draw("<svg class=\"names\" width=\"44\" height=\"{}\">\n", height(block));
  draw("<text x=\"38\" y=\"13\" class=\"end soft\">{}</text>\n", escaped(block.names));
  int y = kRangesAxis;
  for (const Lane& lane : block.lanes) {
    if (lane.rule_above) draw("<path class=\"node\" d=\"M0 {}.5h44\"/>", y - 2);
    draw("<text x=\"38\" y=\"{}\" class=\"end\">{}</text>\n", y + thickness_ / 2 + 4,
         escaped(lane.name));
    y += pitch(block);
  }
  draw("</svg>\n");
}

void RangesDrawing::axis(int height) {
  const std::int64_t step = tick_step(longest_);
  for (std::int64_t at = 0; at <= longest_; at += step) {
    const double x = percent(at);
    draw("<line class=\"tick\" x1=\"{0:.3f}%\" x2=\"{0:.3f}%\" y1=\"16\" y2=\"{1}\"/>", x, height);
    const std::string_view anchor = at == 0 ? "" : x > 90 ? " class=\"end\"" : " class=\"mid\"";
    draw("<text x=\"{:.3f}%\" y=\"12\"{}>{}</text>\n", x, anchor,
         at == 0 ? "0" : tick_text(at, step));
  }
}

// Shown only if the lanes are wide enough.
void RangesDrawing::label(const Box& box, int step) {
  const double need = 6.2 * static_cast<double>(box.label.size()) + 4;
  const std::int64_t solid = box.length - box.pale;
  // In the solid part if it fits there on a wide screen; otherwise in the pale part if it fits.
  const bool fits = need <= percent(solid) / 100 * kWidest;
  const std::int64_t room = fits ? solid : box.pale;
  const std::int64_t middle = fits ? box.end() - solid / 2 : box.begin + box.pale / 2;
  for (const auto& [pixels, label_class] : kRangeLabelWidths) {
    if (need > percent(room) / 100 * pixels) continue;
    const std::string_view on = !fits ? "" : ramp_is_dark(step) ? " light" : " dark";
    draw("<text x=\"{:.3f}%\" y=\"{}\" class=\"mid {}{}\">{}</text>", percent(middle),
         thickness_ / 2 + 4, label_class, on, escaped(box.label));
    return;
  }
}

void RangesDrawing::box(const Box& box) {
  const int step = ramp_step(box.group, ranges_.groups);
  const double width = percent(box.length);
  draw("<g class=\"m r{}{}\" data-d=\"{}\">", step, width < 0.4 ? " thin" : "", box.group);
  const auto rect = [&](std::int64_t begin, std::int64_t length, std::string_view more) {
    draw("<rect x=\"{:.3f}%\" width=\"{:.3f}%\" height=\"{}\"{}/>", percent(begin), percent(length),
         thickness_, more);
  };
  if (box.pale > 0) rect(box.begin, box.pale, " class=\"pale\"");
  rect(box.begin + box.pale, box.length - box.pale, "");
  if (!box.label.empty()) label(box, step);
  draw("<title>{}</title></g>\n", escaped(box.facts));
}

void RangesDrawing::figure(const LaneBlock& block) {
  thickness_ = thickness(block);
  longest_ = longest_lane(block);
  draw("<figure class=\"lanes\">\n<figcaption>{}; the full width is {} {}.</figcaption>\n",
       escaped(block.title), with_separators(longest_), escaped(ranges_.unit));
  draw("<div class=\"plot\">\n");
  names(block);
  draw("<svg class=\"boxes{}\" height=\"{}\" tabindex=\"0\" role=\"group\" aria-label=\"{}; arrow ",
       thickness_ < 18 ? " low" : "", height(block), escaped(block.title));
  draw("keys move through the boxes\">\n");
  axis(height(block));
  int y = kRangesAxis;
  for (const Lane& lane : block.lanes) {
    draw("<g class=\"row\" transform=\"translate(0 {})\">", y);
    if (lane.rule_above) draw("<path class=\"node\" d=\"M0 -1.5h4000\"/>");
    draw("<rect class=\"lane\" width=\"100%\" height=\"{}\"/>\n", thickness_);
    for (const Box& each : lane.boxes) box(each);
    draw("</g>\n");
    y += pitch(block);
  }
  if (block.mark > 0) {
    draw("<line class=\"mark\" x1=\"{0:.3f}%\" x2=\"{0:.3f}%\" y1=\"{1}\" y2=\"{2}\"/>\n",
         percent(block.mark), kRangesAxis - 4, height(block));
  }
  draw("</svg>\n</div>\n</figure>\n");
}

}  // namespace

MergedRanges merged(const Ranges& ranges) {
  MergedRanges result{.ranges = ranges};
  for (LaneBlock& block : result.ranges.blocks) {
    for (Lane& lane : block.lanes) {
      std::erase_if(lane.boxes, [](const Box& box) { return box.length == 0; });
    }
  }
  const Ranges whole = result.ranges;
  double width = 0.5;
  while (box_count(result.ranges) > ranges.max_boxes && width < kWidest) {
    result = {.ranges = whole, .narrower_than = width};
    for (LaneBlock& block : result.ranges.blocks) {
      const double least = width * static_cast<double>(longest_lane(block)) / kWidest;
      for (Lane& lane : block.lanes) result.merged += merge_lane(lane, least);
    }
    width *= 2;
  }
  return result;
}

Html to_html(const Ranges& ranges) {
  const MergedRanges drawn = merged(ranges);
  Html html{RangesDrawing(drawn.ranges).text()};
  if (drawn.merged > 0) {
    html += paragraph(fmt::format("{} neighbouring ranges narrower than {} px are drawn together.",
                                  with_separators(drawn.merged), drawn.narrower_than));
  }
  return html;
}

}  // namespace shiplap::report
