// What every rank does when: a row per rank, time to the right.
//
// A row has three strips. Above is computation, with a box per event in the colour of its layer,
// backward in the lighter tint, the numbers of its samples in it where there is room, and grey
// where the rank waits. Below that is communication, outlined where nothing is computed beside it.
// Under both is the memory that is alive, all rows in one scale, with each peak marked. Pointing at
// a box tells its facts, shows the same samples on all ranks, and of a message the way that it
// takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/report/html.h"
#include "shiplap/trace/spans.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// What an event is about, where that is neither a layer nor samples.
struct LaneWords {
  std::string label;  // in its box, where there is room
  std::string facts;  // what it is, for who points at it: "multiplies rows 0-255"
  // Of a computation: in a colour of the ramp, in that of all computations, or in another one in a
  // strip of its own.
  enum class Look { hue, plain, aside };
  Look look = Look::plain;
  std::int64_t hue = 0;     // below Lanes::hues
  std::int64_t group = -1;  // events of one group, in all lanes of a page, are shown together
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
  trace::Span window;  // what is drawn
  Seconds end;         // of the step, if the window is longer: nobody waits after it; 0: it is not
  int peak_row = -1;   // its peak is the highest of all; -1: that row is not drawn
  // Above, what is narrower than half a pixel is drawn together. Each of the two strips may have so
  // many boxes.
  std::int64_t most_boxes = 20'000;
  int most_arrows = 100;  // messages that are drawn at all times; above, only when pointed at
  // Without it, layers and samples are shown. Used only during the call.
  std::function<LaneWords(const trace::Event&)> words;
  std::int64_t hues = 1;  // that its words deal out
  enum class Memory { shown, left_out };
  Memory memory = Memory::shown;
  // Apart: what is sent above what is received, so that both can be followed.
  enum class Ways { together, apart };
  Ways ways = Ways::together;
};

// A box that is drawn: one event, or neighbours together.
struct LaneBox {
  trace::Span span;
  const trace::Event* event = nullptr;  // the first one
  std::int64_t events = 1;
  // What happens at the same time shares the height of its strip.
  int slot = 0;
  int slots = 1;
  bool is_aside = false;  // in a strip of its own, under the other computations
};

enum class Strip { computation, communication };

// The boxes of every row, and how many events were drawn together. Events without duration have no
// box. The rows keep their order.
struct LaneBoxes {
  std::vector<std::vector<LaneBox>> rows;
  std::int64_t merged = 0;   // events that are drawn together with others
  double narrower_than = 0;  // pixels of a wide screen
};
[[nodiscard]] LaneBoxes boxes(const Lanes& lanes, Strip strip);

// How many layers the colours are dealt out to: the highest that is passed forward or backward, and
// 1.
[[nodiscard]] std::int64_t layers_of(const Lanes& lanes);

[[nodiscard]] Html to_html(const Lanes& lanes);

}  // namespace shiplap::report
