// The timeline of a trace: a lane per rank, time to the right.
//
// A lane has three strips. The top strip is computation: a box per event in the colour of its
// layer, lighter for backward, labelled with its samples if they fit, and grey while the rank
// waits. Below is communication, outlined where it is exposed (not overlapped with computation). At
// the bottom is the allocated memory, all lanes in one scale, with each peak marked. Pointing at a
// box shows its tooltip, highlights the same samples on all ranks, and draws the arrow of a
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/report/html.h"
#include "shiplap/trace/spans.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// The label of an event, for traces without layers and samples.
struct EventLabel {
  std::string label;    // in its box, if it fits
  std::string tooltip;  // what it is: "multiplies rows 0-255"
  // The colour of a computation: a colour of the ramp, the common one, or another one in a separate
  // strip.
  enum class Style { hue, plain, secondary };
  Style style = Style::plain;
  std::int64_t hue = 0;     // below Lanes::hues
  std::int64_t group = -1;  // events of a group are highlighted together, in all lanes of a page
};

struct Lanes {
  struct Row {
    std::string name;                        // "3"
    const trace::RankTrace* rank = nullptr;  // used only during the call
    int number = 0;                          // of the rank
    Bytes peak;
    Seconds peak_time;
  };
  std::vector<Row> rows;
  trace::Span window;  // the drawn time span
  Seconds end;  // of the step, if the window is longer: no waiting is drawn after it; 0: it is not
  int peak_row = -1;  // the row with the highest peak; -1: it is not drawn
  // Limit of each of the two strips. Above it, boxes narrower than half a pixel are merged.
  std::int64_t max_boxes = 20'000;
  // Of a row with more points, each cell of the width keeps its maximum.
  std::size_t max_memory_points = 2000;
  // Pixels. Narrower gaps between waits or communications are closed; boxes are not changed.
  double min_gap = 0;
  // With more messages, arrows are drawn only when pointed at.
  int max_arrows = 100;
  // Labels an event. If empty, layers and samples are shown. Used only during the call.
  std::function<EventLabel(const trace::Event&)> label_event;
  std::int64_t hues = 1;  // number of hues that label_event uses
  enum class Memory { shown, left_out };
  Memory memory = Memory::shown;
  // Separate: sends are drawn above receives.
  enum class Directions { merged, separate };
  Directions directions = Directions::merged;
};

// A drawn box: one event, or merged neighbours.
struct LaneBox {
  trace::Span span;
  const trace::Event* event = nullptr;  // the first one
  std::int64_t events = 1;
  // Concurrent events share the height of the strip.
  int slot = 0;
  int slots = 1;
  bool is_secondary = false;  // in a separate strip below the other computations
};

enum class Strip { computation, communication };

// The boxes of every row. Events without duration have no box. The rows keep their order.
struct LaneBoxes {
  std::vector<std::vector<LaneBox>> rows;
  std::int64_t merged = 0;   // events in boxes of several events
  double narrower_than = 0;  // pixels of a wide screen
};
[[nodiscard]] LaneBoxes boxes(const Lanes& lanes, Strip strip);

// The number of layers on the colour ramp: the highest layer of a forward or backward pass, plus 1.
[[nodiscard]] std::int64_t layers_of(const Lanes& lanes);

[[nodiscard]] Html to_html(const Lanes& lanes);

}  // namespace shiplap::report
