#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "shiplap/base/units.h"
#include "shiplap/report/lanes_internal.h"
#include "shiplap/report/ramp.h"
#include "shiplap/report/text.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/text.h"

namespace shiplap::report {
namespace {

using trace::Event;
using trace::EventKind;
using trace::Spans;

constexpr int kAxis = 20;        // pixels above the rows
constexpr int kUnits = 100'000;  // of the width, in paths, which do not support percentages

// Pixels of the strips of a row; they depend on the number of rows.
struct Heights {
  int computation;
  int communication;
  int memory;
  int gap;
  int secondary = 0;
  [[nodiscard]] int computing() const { return computation + secondary; }
  [[nodiscard]] int row() const { return computing() + communication + memory + 2; }
  [[nodiscard]] int pitch() const { return row() + gap; }
};
Heights heights(const Lanes& lanes, const DrawnBoxes& boxes) {
  const std::size_t rows = lanes.rows.size();
  Heights heights{.computation = 22, .communication = 13, .memory = 16, .gap = 9};
  if (rows > 10) heights = {.computation = 15, .communication = 6, .memory = 8, .gap = 5};
  if (rows > 24) heights = {.computation = 9, .communication = 3, .memory = 4, .gap = 2};
  const bool has_secondary = std::ranges::any_of(boxes.computation.rows, [](const auto& row) {
    return std::ranges::any_of(row, &LaneBox::is_secondary);
  });
  if (has_secondary) heights.secondary = heights.communication;
  if (lanes.memory == Lanes::Memory::left_out) heights.memory = 0;
  if (lanes.directions == Lanes::Directions::separate) heights.communication *= 2;
  return heights;
}

// The lane widths from which a label is shown, and their classes in the style sheet.
struct LabelWidth {
  double pixels;
  std::string_view label_class;
};
constexpr std::array<LabelWidth, 8> kLabelWidths{{{230, "z0"},
                                                  {540, "z1"},
                                                  {900, "z2"},
                                                  {1800, "z3"},
                                                  {3600, "z4"},
                                                  {7200, "z5"},
                                                  {14'400, "z6"},
                                                  {28'800, "z7"}}};

// The time unit of an axis.
struct Unit {
  double seconds;
  std::string_view name;
};
Unit unit_of(Seconds length) {
  if (length.value >= 2) return {.seconds = 1, .name = "s"};
  if (length.value >= 2e-3) return {.seconds = 1e-3, .name = "ms"};
  if (length.value >= 2e-6) return {.seconds = 1e-6, .name = "us"};
  return {.seconds = 1e-9, .name = "ns"};
}

// A round tick distance with at most `most` ticks.
double tick_step(double length, int most) {
  double ten = std::pow(10, std::floor(std::log10(length / most)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (length / (factor * ten) <= most) return factor * ten;
  }
  return 10 * ten;
}

// Describes an event: "send, layer 0, samples 4-5".
std::string describe_event(const Event& event) {
  std::string text(trace::name(event.kind));
  if (event.layer >= 0) text += fmt::format(", layer {}", event.layer);
  if (!event.samples.empty()) {
    text += fmt::format(", sample{} {}", event.samples.size() == 1 ? "" : "s",
                        trace::short_text(event.samples));
  }
  return text;
}

// The tooltip of a box.
struct TooltipContext {
  int rank = 0;
  Seconds origin;    // times are relative to it
  std::string what;  // describes the event
};
std::string tooltip_text(const LaneBox& box, const TooltipContext& about) {
  const Event& event = *box.event;
  const std::string when = fmt::format(
      "starts at {}, takes {}", to_string(event.time - about.origin), to_string(event.duration));
  if (box.events > 1) {
    return fmt::format("rank {}: {} events, drawn together\nfrom {} to {}\nthe first: {}",
                       about.rank, with_separators(box.events),
                       to_string(box.span.begin - about.origin),
                       to_string(box.span.end - about.origin), trace::label(event));
  }
  std::string text = fmt::format("rank {}: {}\n{}", about.rank, about.what, when);
  if (trace::is_communication(event.kind)) {
    text += "\n" + to_string(event.bytes);
    if (event.peer >= 0) {
      text += fmt::format(" {} rank {}", event.kind == EventKind::recv ? "from" : "to", event.peer);
    }
  }
  if (event.memory.count > 0) text += "\nmemory " + to_string(event.memory);
  if (event.operation >= 0) text += fmt::format("\noperation {}", event.operation);
  return text;
}

// The label of a communication box: "AG"; "" for other kinds.
std::string_view abbreviation(EventKind kind) {
  switch (kind) {
    case EventKind::all_reduce:
      return "AR";
    case EventKind::all_gather:
      return "AG";
    case EventKind::reduce_scatter:
      return "RS";
    case EventKind::all_to_all:
      return "AA";
    case EventKind::send:
      return "S";
    case EventKind::recv:
      return "R";
    default:
      return "";
  }
}

class Drawing {
 public:
  Drawing(const Lanes& lanes, const DrawnBoxes& boxes)
      : lanes_(lanes),
        boxes_(boxes),
        heights_(heights(lanes, boxes)),
        layers_(layers_of(lanes)),
        highest_(highest(lanes)) {}

  std::string text();

 private:
  // An end of a message arrow: its box, and the vertical middle.
  struct End {
    const LaneBox* box = nullptr;
    double y = 0;
  };

  static Bytes highest(const Lanes& lanes) {
    Bytes most{1};
    for (const Lanes::Row& row : lanes.rows) most = std::max(most, row.peak);
    return most;
  }

  void names();
  void peaks();
  void plot();
  void axis();
  void ticks(double step, double except, std::string_view more);
  void row(std::size_t index);
  void computation(std::size_t index);
  void box(const LaneBox& box, int rank);
  struct Place {
    int top;
    int height;
  };
  void label(const LaneBox& box, Place strip, std::string_view text, std::string_view on);
  // The style and label of a computation.
  struct BoxStyle {
    std::string css_class;
    std::string label;
    std::string_view on;  // the class of the label
  };
  [[nodiscard]] BoxStyle style_of(const LaneBox& box, const EventLabel& event_label) const;
  void communication(std::size_t index);
  void strip(const Spans& all, const Spans& all_exposed, int height);
  [[nodiscard]] Spans without_gaps(const Spans& spans) const;
  void strips(const trace::RankTrace& rank, const Spans& computation);
  void memory(const Lanes::Row& row, bool is_highest);
  void arrows();
  void outlines(const Spans& exposed, int height);
  // A rectangle for every span, all in one element that stretches with the lanes.
  void path(std::string_view css_class, int height, const Spans& spans);

  [[nodiscard]] double part(Seconds time) const {
    const Seconds length = lanes_.window.length();
    return length > Seconds{0} ? (time - lanes_.window.begin) / length : 0;
  }
  [[nodiscard]] double percent(Seconds time) const { return 100 * part(time); }
  [[nodiscard]] long units(Seconds time) const { return std::lround(kUnits * part(time)); }
  [[nodiscard]] double width(const trace::Span& span) const {
    return percent(span.end) - percent(span.begin);
  }
  [[nodiscard]] int top(std::size_t row) const {
    return kAxis + heights_.pitch() * static_cast<int>(row);
  }
  [[nodiscard]] int height() const { return top(lanes_.rows.size()); }
  [[nodiscard]] bool is_tall() const { return heights_.computation > 20; }
  [[nodiscard]] bool shows_memory() const { return heights_.memory > 0; }
  // The number of a set of samples, in order of first occurrence.
  std::int64_t group(const IndexSet& samples) {
    return groups_.try_emplace(trace::short_text(samples), std::ssize(groups_)).first->second;
  }
  EventLabel label_of(const Event& event) {
    if (lanes_.label_event) return lanes_.label_event(event);
    return {.label = {},
            .tooltip = describe_event(event),
            .group = event.samples.empty() ? -1 : group(event.samples)};
  }

  template <typename... Values>
  void draw(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  const Lanes& lanes_;
  const DrawnBoxes& boxes_;
  Heights heights_;
  std::int64_t layers_;
  Bytes highest_;
  std::map<std::string, std::int64_t> groups_;
  std::string out_;
};

void Drawing::names() {
  constexpr std::size_t kMinPixels = 46;
  constexpr std::size_t kPixelsPerCharacter = 7;
  std::size_t end = kMinPixels;
  for (const Lanes::Row& row : lanes_.rows) {
    end = std::max(end, kPixelsPerCharacter * display_width(row.name));
  }
  draw("<svg class=\"names\" width=\"{}\" height=\"{}\">\n", end + 6, height());
  draw("<text x=\"{}\" y=\"13\" class=\"end soft\">rank</text>\n", end);
  for (std::size_t i = 0; i < lanes_.rows.size(); ++i) {
    draw("<text x=\"{}\" y=\"{}\" class=\"end\">{}</text>\n", end,
         top(i) + heights_.computation / 2 + 4, escaped(lanes_.rows[i].name));
  }
  draw("</svg>\n");
}

// To the right of the rows, so that no box covers them.
void Drawing::peaks() {
  draw("<svg class=\"names\" width=\"62\" height=\"{}\">\n", height());
  draw("<text x=\"6\" y=\"13\" class=\"soft\">peak</text>\n");
  for (std::size_t i = 0; i < lanes_.rows.size(); ++i) {
    const bool is_highest = static_cast<int>(i) == lanes_.peak_row;
    const int y = is_tall() ? heights_.row() - 4 : heights_.computation / 2 + 4;
    draw("<text x=\"6\" y=\"{}\" class=\"{}\">{}</text>\n", top(i) + y,
         is_highest ? "highest" : "soft", to_string(lanes_.rows[i].peak));
  }
  draw("</svg>\n");
}

void Drawing::ticks(double step, double except, std::string_view more) {
  const Unit unit = unit_of(lanes_.window.length());
  const double length = lanes_.window.length().value;
  const auto count = static_cast<int>(length / step + 1e-9);
  const auto every = except > 0 ? static_cast<int>(std::lround(except / step)) : 0;
  for (int i = 0; i <= count; ++i) {
    if (every > 0 && i % every == 0) continue;  // drawn already
    const double x = 100 * i * step / length;
    draw(
        "<g class=\"{0}\"><line class=\"tick\" x1=\"{1:.4f}%\" x2=\"{1:.4f}%\" y1=\"16\" "
        "y2=\"{2}\"/>",
        more, x, height());
    // The label of the last coarse tick is left of its line, where a finer tick could be.
    const double last = except > 0 ? 100 * std::floor(length / except + 1e-9) * except / length : 0;
    const bool has_room = every == 0 || (x < 97.5 && (last < 90 || std::abs(x - last) > 9));
    const std::string_view anchor = i == 0 ? "" : every == 0 && x > 90 ? "end" : "mid";
    if (has_room) {
      draw("<text x=\"{:.4f}%\" y=\"12\" class=\"{}\">{:.6g}{}{}</text>", x, anchor,
           i * step / unit.seconds, i == 0 ? "" : "\u00A0", i == 0 ? "" : unit.name);
    }
    draw("</g>\n");
  }
}

void Drawing::axis() {
  const double length = lanes_.window.length().value;
  if (length <= 0) return;
  // Few ticks on small screens, finer ones on wide screens.
  const double coarse = tick_step(length, 4);
  const double decade = std::pow(10, std::floor(std::log10(coarse) + 1e-9));
  const double fine = coarse / (coarse > 3 * decade ? 5 : 2);
  ticks(coarse, 0, "");
  ticks(fine, coarse, "z2");
  ticks(fine / 5, fine, "z5");
  ticks(fine / 25, fine / 5, "z7");
}

void Drawing::path(std::string_view css_class, int height, const Spans& spans) {
  if (spans.empty()) return;
  draw(
      "<svg class=\"flat\" viewBox=\"0 0 {0} {1}\" preserveAspectRatio=\"none\" "
      "height=\"{1}\"><path class=\"{2}\" d=\"",
      kUnits, height, css_class);
  for (const trace::Span& span : spans) {
    const long x = units(span.begin);
    draw("M{} 0h{}v{}H{}z", x, units(span.end) - x, height, x);
  }
  draw("\"/></svg>");
}

// Shown only if the lanes are wide enough.
void Drawing::label(const LaneBox& box, Place strip, std::string_view text, std::string_view on) {
  const double each = static_cast<double>(strip.height) / box.slots;
  if (text.empty() || each < 12 || box.events > 1) return;
  const double need = 6.2 * static_cast<double>(text.size()) + 2;
  const double room = width(box.span) / 100;
  for (const auto& [pixels, label_class] : kLabelWidths) {
    if (need > room * pixels) continue;
    draw("<text x=\"{:.4f}%\" y=\"{:.0f}\" class=\"n mid {} {}\"",
         percent(box.span.begin) + width(box.span) / 2, strip.top + each * (box.slot + 0.5) + 4,
         label_class, on);
    const std::int64_t common = label_of(*box.event).group;
    if (common >= 0) draw(" data-d=\"{}\"", common);
    draw(">{}</text>", escaped(text));
    return;
  }
}

Drawing::BoxStyle Drawing::style_of(const LaneBox& box, const EventLabel& event_label) const {
  const Event& event = *box.event;
  const auto on = [](int step) { return ramp_is_dark(step) ? "light" : "dark"; };
  if (box.events > 1) return {.css_class = "other", .label = "", .on = ""};
  if (lanes_.label_event && event_label.style != EventLabel::Style::hue) {
    const bool secondary = event_label.style == EventLabel::Style::secondary;
    return {.css_class = secondary ? "update" : "other",
            .label = event_label.label,
            .on = secondary ? "dark" : "light"};
  }
  if (lanes_.label_event) {
    const int step = ramp_step(event_label.hue, lanes_.hues);
    return {.css_class = fmt::format("r{}", step), .label = event_label.label, .on = on(step)};
  }
  if (event.kind == EventKind::update) return {.css_class = "update", .label = "U", .on = "dark"};
  const bool is_pale = trace::is_backward(event.kind);
  if ((!trace::is_forward(event.kind) && !is_pale) || event.layer < 0) {
    return {.css_class = "other", .label = "", .on = ""};
  }
  const int step = ramp_step(event.layer, layers_);
  return {.css_class = fmt::format("r{}{}", step, is_pale ? " pale" : ""),
          .label = event.samples.empty() ? "" : trace::short_text(event.samples),
          .on = is_pale ? "" : on(step)};
}

void Drawing::box(const LaneBox& box, int rank) {
  const EventLabel about = label_of(*box.event);
  const BoxStyle style = style_of(box, about);
  const int high = box.is_secondary ? heights_.secondary : heights_.computation;
  const double each = static_cast<double>(high) / box.slots;
  const double y = (box.is_secondary ? heights_.computation : 0) + each * box.slot;
  draw("<rect class=\"m {}{}\" x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{:.3g}\" height=\"{:.3g}\"",
       style.css_class, width(box.span) < 0.5 ? " thin" : "", percent(box.span.begin),
       width(box.span), y, each);
  if (about.group >= 0 && box.events == 1) draw(" data-d=\"{}\"", about.group);
  draw("><title>{}</title></rect>",
       escaped(tooltip_text(box, {rank, lanes_.window.begin, about.tooltip})));
  label(box, {.top = box.is_secondary ? heights_.computation : 0, .height = high}, style.label,
        style.on);
}

void Drawing::computation(std::size_t index) {
  const Lanes::Row& row = lanes_.rows[index];
  const trace::Activity active = trace::activity(*row.rank);
  trace::Span step = lanes_.window;
  if (lanes_.end > Seconds{0}) step.end = std::min(step.end, lanes_.end);
  const Spans waiting =
      trace::without(trace::without({step}, active.computation), active.communication);
  path("waits", heights_.computing(), without_gaps(waiting));
  draw("<g class=\"row\">");
  for (const LaneBox& each : boxes_.computation.rows[index]) box(each, row.number);
  draw("</g>\n");
}

Spans Drawing::without_gaps(const Spans& spans) const {
  const Seconds least{lanes_.min_gap / kWidestLanes * lanes_.window.length().value};
  Spans closed;
  for (const trace::Span& span : spans) {
    if (!closed.empty() && span.begin - closed.back().end < least) {
      closed.back().end = span.end;
    } else {
      closed.push_back(span);
    }
  }
  return closed;
}

// A narrow span is outlined only if the lanes are wide; otherwise the outline would cover it.
void Drawing::outlines(const Spans& exposed, int height) {
  struct Group {
    double from;  // percent of the width
    double to;
    std::string_view css_class;
  };
  constexpr std::array<Group, 3> kGroups{
      {{2, 101, "outline"}, {0.5, 2, "outline z1"}, {0.1, 0.5, "outline z4"}}};
  for (const Group& group : kGroups) {
    Spans spans = exposed;
    std::erase_if(spans, [&](const trace::Span& span) {
      return width(span) < group.from || width(span) >= group.to;
    });
    path(group.css_class, height, spans);
  }
}

// The position of a label: the longest part that is entirely exposed or entirely hidden.
struct LabelPlace {
  LaneBox part;
  bool is_exposed = false;
};
LabelPlace longest_part(const LaneBox& box, const Spans& exposed) {
  LabelPlace best{.part = box};
  best.part.span.end = box.span.begin;
  Seconds from = box.span.begin;
  const auto see = [&](Seconds to, bool exposed_here) {
    const trace::Span span{.begin = from, .end = std::min(to, box.span.end)};
    if (span.length() > best.part.span.length()) {
      best.part.span = span;
      best.is_exposed = exposed_here;
    }
    from = std::max(from, to);
  };
  auto next = std::ranges::upper_bound(exposed, box.span.begin, {}, &trace::Span::end);
  for (; next != exposed.end() && next->begin < box.span.end; ++next) {
    see(next->begin, false);
    see(next->end, true);
  }
  see(box.span.end, false);
  return best;
}

void Drawing::strip(const Spans& all, const Spans& all_exposed, int height) {
  const Spans exposed = without_gaps(all_exposed);
  const Spans active = without_gaps(all);
  path("hidden", height, trace::without(active, exposed));
  path("bare", height, exposed);
  outlines(exposed, height);
}

// All communication in one strip, or sends above receives.
void Drawing::strips(const trace::RankTrace& rank, const Spans& computation) {
  const int half = heights_.communication / 2;
  struct Part {
    Spans spans;
    int y;
    int height;
  };
  const auto spans_of = [&](auto&& is_meant) {
    std::vector<trace::Span> spans;
    for (const Event& event : rank.events) {
      if (is_meant(event.kind)) spans.push_back({.begin = event.time, .end = event.end()});
    }
    return trace::united(std::move(spans));
  };
  std::vector<Part> parts;
  if (lanes_.directions == Lanes::Directions::merged) {
    parts.push_back({spans_of(trace::is_communication), 0, heights_.communication});
  } else {
    const auto is_message = [](EventKind kind) {
      return kind == EventKind::send || kind == EventKind::recv;
    };
    parts.push_back({spans_of([&](EventKind kind) {
                       return trace::is_communication(kind) && !is_message(kind);
                     }),
                     0, heights_.communication});
    parts.push_back({spans_of([](EventKind kind) { return kind == EventKind::send; }), 0, half});
    parts.push_back({spans_of([](EventKind kind) { return kind == EventKind::recv; }), half, half});
  }
  for (const Part& part : parts) {
    if (part.y > 0) draw("<g transform=\"translate(0 {})\">", part.y);
    strip(part.spans, trace::without(part.spans, computation), part.height);
    if (part.y > 0) draw("</g>");
  }
}

// The strip is drawn exactly, in two elements, however many events it has. The boxes only receive
// the pointer.
void Drawing::communication(std::size_t index) {
  const Lanes::Row& row = lanes_.rows[index];
  const int high = heights_.communication;
  // Borders between neighbouring boxes are drawn only if each direction has its own strip.
  const bool apart = lanes_.directions == Lanes::Directions::separate;
  const trace::Activity active = trace::activity(*row.rank);
  const Spans exposed = trace::without(active.communication, active.computation);
  draw("<g transform=\"translate(0 {})\"><rect class=\"lane\" width=\"100%\" height=\"{}\"/>",
       heights_.computing() + 1, high);
  strips(*row.rank, active.computation);
  draw("<g class=\"row\">");
  for (const LaneBox& box : boxes_.communication.rows[index]) {
    const double each = static_cast<double>(high) / box.slots;
    const Event& event = *box.event;
    const EventLabel about = label_of(event);
    const std::string css_class = fmt::format("{}{}", event.kind == EventKind::recv ? " in" : "",
                                              apart && box.slots <= 2 ? " apart" : "");
    draw("<rect class=\"m c{}\" x=\"{:.4f}%\" width=\"{:.4f}%\" y=\"{:.3g}\" height=\"{:.3g}\"",
         css_class, percent(box.span.begin), width(box.span), each * box.slot, each);
    if (box.events == 1 && event.match >= 0) draw(" data-m=\"{}\"", event.match);
    if (box.events == 1 && about.group >= 0) draw(" data-d=\"{}\"", about.group);
    draw("><title>{}</title></rect>",
         escaped(tooltip_text(box, {row.number, lanes_.window.begin, about.tooltip})));
    if (!is_tall()) continue;
    const LabelPlace place = longest_part(box, exposed);
    label(place.part, {.top = 0, .height = high},
          lanes_.label_event ? about.label : abbreviation(event.kind),
          place.is_exposed ? "dark" : "");
  }
  draw("</g></g>\n");
}

void Drawing::memory(const Lanes::Row& row, bool is_highest) {
  const int high = heights_.memory;
  const auto y_of = [&](Bytes bytes) {
    return high * (1 - static_cast<double>(bytes.count) / static_cast<double>(highest_.count));
  };
  draw("<g transform=\"translate(0 {})\">", heights_.computing() + heights_.communication + 2);
  draw("<rect class=\"lane\" width=\"100%\" height=\"{}\"/>", high);
  draw(
      "<svg class=\"flat\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "height=\"{}\"><path class=\"alive\" d=\"M0 {}",
      kUnits, high, high, high);
  // Of many points, each cell of the width keeps the maximum, so that no peak is lost.
  const auto& points = row.rank->memory;
  const std::size_t most_points = lanes_.max_memory_points;
  const long cell = points.size() > most_points ? kUnits / static_cast<long>(most_points / 2) : 1;
  for (std::size_t i = 0; i < points.size();) {
    const long x = units(points[i].time) / cell * cell;
    Bytes most;
    for (; i < points.size() && units(points[i].time) / cell * cell == x; ++i) {
      most = std::max(most, points[i].bytes);
      if (cell == 1) most = points[i].bytes;
    }
    draw("H{}V{:.4g}", std::clamp<long>(x, 0, kUnits), y_of(most));
  }
  draw("H{}V{}z\"/></svg>", kUnits, high);
  if (row.peak.count > 0) {
    draw("<line class=\"peak{}\" x1=\"{:.4f}%\" x2=\"{:.4f}%\" y1=\"{:.3g}\" y2=\"{}\"/>",
         is_highest ? " highest" : "", percent(row.peak_time), percent(row.peak_time),
         std::max(0.0, y_of(row.peak) - 1), high);
  }
  draw("</g>\n");
}

void Drawing::row(std::size_t index) {
  draw("<g transform=\"translate(0 {})\">\n", top(index));
  computation(index);
  communication(index);
  if (shows_memory()) memory(lanes_.rows[index], static_cast<int>(index) == lanes_.peak_row);
  draw("</g>\n");
}

// From the start of a send to the end of its recv.
void Drawing::arrows() {
  std::map<std::int64_t, std::pair<End, End>> messages;
  for (std::size_t i = 0; i < lanes_.rows.size(); ++i) {
    for (const LaneBox& box : boxes_.communication.rows[i]) {
      if (box.events > 1 || box.event->match < 0) continue;
      auto& [send, recv] = messages[box.event->match];
      const bool apart = lanes_.directions == Lanes::Directions::separate;
      const double middle = apart ? (box.slot + 0.5) / box.slots : 0.5;
      (box.event->kind == EventKind::recv ? recv : send) = {
          .box = &box, .y = top(i) + heights_.computing() + 1 + heights_.communication * middle};
    }
  }
  if (std::ssize(messages) > lanes_.max_arrows) return;
  for (const auto& [match, ends] : messages) {
    const auto& [send, recv] = ends;
    if (send.box == nullptr || recv.box == nullptr) continue;
    draw("<line class=\"arrow z1\" x1=\"{:.4f}%\" y1=\"{}\" x2=\"{:.4f}%\" y2=\"{}\"/>",
         percent(send.box->span.begin), send.y, percent(recv.box->span.end), recv.y);
    draw("<circle class=\"arrow z1\" cx=\"{:.4f}%\" cy=\"{}\" r=\"1.6\"/>\n",
         percent(recv.box->span.end), recv.y);
  }
}

void Drawing::plot() {
  draw("<div class=\"scroll\" tabindex=\"-1\"><div class=\"stretch\">\n");
  draw("<svg class=\"boxes time{}\" height=\"{}\" tabindex=\"0\" role=\"group\" ",
       is_tall() ? "" : " low", height());
  draw(
      "aria-label=\"Timeline of all ranks; arrow keys move through the boxes, plus and minus "
      "zoom\">\n");
  axis();
  for (std::size_t i = 0; i < lanes_.rows.size(); ++i) row(i);
  arrows();
  draw("</svg>\n</div></div>\n");
}

std::string Drawing::text() {
  draw(
      "<figure class=\"lanes\">\n<div class=\"zoom\" hidden><button data-zoom=\"2\" "
      "title=\"zoom in\">+</button><button data-zoom=\"0.5\" title=\"zoom out\">\u2212</button>"
      "<button data-zoom=\"0\" title=\"show all\">fit</button></div>\n<div class=\"plot\">\n");
  names();
  plot();
  if (shows_memory()) peaks();
  draw("</div>\n</figure>\n");
  return std::move(out_);
}

}  // namespace

Html draw(const Lanes& lanes, const DrawnBoxes& boxes) {
  Html html{Drawing(lanes, boxes).text()};
  const std::int64_t merged = boxes.computation.merged + boxes.communication.merged;
  if (merged > 0) {
    const double width =
        std::max(boxes.computation.narrower_than, boxes.communication.narrower_than);
    html +=
        paragraph(fmt::format("Neighbouring events narrower than {} px are merged into one box: {} "
                              "events.",
                              width, with_separators(merged)));
  }
  return html;
}

}  // namespace shiplap::report
