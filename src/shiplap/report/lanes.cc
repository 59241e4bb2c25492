// Layout of the boxes of a timeline (see lanes.h); lanes_drawing.cc draws them.
//
// Events of one strip may overlap in time. They are grouped into maximal sets of overlapping
// events, and each set is assigned to slots by greedy interval partitioning: in order of their
// start, every event takes the first free slot. All events of a set share the height of the strip
// evenly.
//
// A trace may have more events than a browser can handle, so the strips of one kind
// have at most Lanes::max_boxes boxes together. If there are more, neighbours narrower than half a
// pixel are merged into one box; if that is not enough, narrower than one pixel, and so on, up to a
// limit.
#include "shiplap/report/lanes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "shiplap/report/lanes_internal.h"
#include "shiplap/trace/summary.h"

namespace shiplap::report {
namespace {

void sort_by_time(std::vector<LaneBox>& boxes) {
  std::ranges::sort(boxes, {},
                    [](const LaneBox& box) { return std::pair(box.span.begin, box.event); });
}

std::vector<LaneBox> boxes_of(const trace::RankTrace& rank, Strip strip) {
  std::vector<LaneBox> made;
  for (const trace::Event& event : rank.events) {
    const bool communicates = trace::is_communication(event.kind);
    if (communicates != (strip == Strip::communication)) continue;
    if (event.duration <= Seconds{0}) continue;
    made.push_back({.span = {.begin = event.time, .end = event.end()}, .event = &event});
  }
  sort_by_time(made);
  return made;
}

// Assigns each of `boxes`, a set of overlapping events, to the first free slot.
void share_height(std::span<LaneBox> boxes) {
  std::vector<Seconds> free_from;
  for (LaneBox& box : boxes) {
    const auto free =
        std::ranges::find_if(free_from, [&](Seconds time) { return time <= box.span.begin; });
    box.slot = static_cast<int>(free - free_from.begin());
    if (free == free_from.end()) {
      free_from.push_back(box.span.end);
    } else {
      *free = box.span.end;
    }
  }
  for (LaneBox& box : boxes) box.slots = static_cast<int>(free_from.size());
}

// Equal times of neighbours may differ by rounding.
constexpr Seconds kSame{1e-12};

void share_heights(std::vector<LaneBox>& boxes) {
  const std::span<LaneBox> all = boxes;
  for (std::size_t first = 0; first < all.size();) {
    Seconds end = all[first].span.end;
    std::size_t next = first + 1;
    while (next < all.size() && all[next].span.begin + kSame < end) {
      end = std::max(end, all[next++].span.end);
    }
    if (next > first + 1) share_height(all.subspan(first, next - first));
    first = next;
  }
}

// Secondary computations have a separate strip.
void split_secondary(const Lanes& lanes, std::vector<LaneBox>& boxes) {
  std::vector<LaneBox> secondary;
  for (LaneBox& box : boxes) {
    box.is_secondary = lanes.label_event(*box.event).style == EventLabel::Style::secondary;
    if (box.is_secondary) secondary.push_back(box);
  }
  std::erase_if(boxes, [](const LaneBox& box) { return box.is_secondary; });
  share_heights(boxes);
  share_heights(secondary);
  std::ranges::move(secondary, std::back_inserter(boxes));
  sort_by_time(boxes);
}

// Sends get the upper half, receives the lower half, collectives the full height.
void split_directions(std::vector<LaneBox>& boxes) {
  std::vector<LaneBox> parted;
  for (const trace::EventKind half : {trace::EventKind::send, trace::EventKind::recv}) {
    std::vector<LaneBox> own;
    std::ranges::copy_if(boxes, std::back_inserter(own),
                         [&](const LaneBox& box) { return box.event->kind == half; });
    share_heights(own);
    for (LaneBox& box : own) {
      box.slot += half == trace::EventKind::recv ? box.slots : 0;
      box.slots *= 2;
    }
    std::erase_if(boxes, [&](const LaneBox& box) { return box.event->kind == half; });
    std::ranges::move(own, std::back_inserter(parted));
  }
  share_heights(boxes);
  std::ranges::move(parted, std::back_inserter(boxes));
  sort_by_time(boxes);
}

LaneBox merged_box(std::span<const LaneBox> boxes) {
  LaneBox result = boxes.front();
  if (boxes.size() == 1) return result;
  for (const LaneBox& box : boxes.subspan(1)) {
    result.span.end = std::max(result.span.end, box.span.end);
    result.events += box.events;
  }
  result.slot = 0;
  result.slots = 1;
  return result;
}

// Merges neighbours narrower than `least` into boxes of at least that width. Returns the number of
// merged events.
std::int64_t merge(std::vector<LaneBox>& boxes, Seconds least) {
  std::vector<LaneBox> kept;
  const std::span<const LaneBox> all = boxes;
  std::int64_t vanished = 0;
  for (std::size_t first = 0; first < all.size();) {
    std::size_t next = first + 1;
    while (next < all.size() && all[next].span.length() < least &&
           all[next - 1].span.end - all[first].span.begin < least) {
      ++next;
    }
    kept.push_back(merged_box(all.subspan(first, next - first)));
    if (kept.back().events > 1) vanished += kept.back().events;
    first = next;
  }
  boxes = std::move(kept);
  return vanished;
}

std::int64_t count(const std::vector<std::vector<LaneBox>>& rows) {
  std::int64_t sum = 0;
  for (const std::vector<LaneBox>& row : rows) sum += std::ssize(row);
  return sum;
}

}  // namespace

LaneBoxes boxes(const Lanes& lanes, Strip strip) {
  LaneBoxes result;
  for (const Lanes::Row& row : lanes.rows) {
    result.rows.push_back(boxes_of(*row.rank, strip));
    if (strip == Strip::communication && lanes.directions == Lanes::Directions::separate) {
      split_directions(result.rows.back());
    } else if (strip == Strip::computation && lanes.label_event) {
      split_secondary(lanes, result.rows.back());
    } else {
      share_heights(result.rows.back());
    }
  }
  for (int halves = 1; count(result.rows) > lanes.max_boxes; halves *= 2) {
    const double width = halves / 2.0;
    if (width >= kWidestLanes) break;
    const Seconds least{width / kWidestLanes * lanes.window.length().value};
    result.merged = 0;
    result.narrower_than = width;
    for (std::vector<LaneBox>& row : result.rows) result.merged += merge(row, least);
  }
  return result;
}

std::int64_t layers_of(const Lanes& lanes) {
  std::int64_t layers = 1;
  for (const Lanes::Row& row : lanes.rows) {
    for (const trace::Event& event : row.rank->events) {
      // A sent output may have a layer number one above the last layer.
      if (!trace::is_forward(event.kind) && !trace::is_backward(event.kind)) continue;
      layers = std::max<std::int64_t>(layers, std::int64_t{event.layer} + 1);
    }
  }
  return layers;
}

Html to_html(const Lanes& lanes) {
  return draw(lanes, {.computation = boxes(lanes, Strip::computation),
                      .communication = boxes(lanes, Strip::communication)});
}

}  // namespace shiplap::report
