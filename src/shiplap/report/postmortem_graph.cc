// The wait-for graph of a postmortem: a node per class of ranks, as layers of boxes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/report/postmortem_internal.h"

namespace shiplap::report {
namespace {

using postmortem::Position;
using postmortem::Postmortem;
using postmortem::Suspect;

constexpr std::size_t kMaxBoxesPerLayer = 4;
constexpr std::size_t kMaxLayers = 7;
constexpr std::size_t kMaxDashedArrows = 12;

// The node of a class, or of several ones that have no room.
struct GraphBox {
  std::vector<std::size_t> classes;
  std::size_t layer = 0;
  std::size_t column = 0;
};

// Layers by distance from the culprit, which is in the first one: an arrow to the layer above leads
// towards it. Other arrows close a cycle, or lead away.
class GraphLayout {
 public:
  GraphLayout(const Postmortem& found, const RankClasses& classes)
      : classes_(classes), layer_(classes.all().size(), kNone), waiting_(classes.all().size()) {
    for (std::size_t k = 0; k < waiting_.size(); ++k) {
      for (const std::size_t to : classes.all()[k].waits_for) {
        if (to != k) waiting_[to].push_back(k);
      }
    }
    find_layers(find_sources(found));
    place();
    connect();
  }

  [[nodiscard]] const std::vector<GraphBox>& boxes() const { return boxes_; }
  // From and to a box.
  [[nodiscard]] const std::set<std::pair<std::size_t, std::size_t>>& arrows() const {
    return arrows_;
  }
  [[nodiscard]] std::int64_t isolated_ranks() const { return isolated_ranks_; }
  [[nodiscard]] std::size_t layers() const { return boxes_.empty() ? 0 : boxes_.back().layer + 1; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  [[nodiscard]] bool is_isolated(std::size_t index) const {
    const RankClass& found = classes_.all()[index];
    return found.waits_for.empty() && waiting_[index].empty() && found.role > RankRole::suspect;
  }

  // Everything that waits for `sources`, nearest first.
  void find_layers(const std::vector<std::size_t>& sources) {
    std::ranges::fill(layer_, kNone);
    std::vector<std::size_t> open = sources;
    for (const std::size_t source : sources) layer_[source] = 0;
    for (std::size_t k = 0; k < open.size(); ++k) {
      for (const std::size_t from : waiting_[open[k]]) {
        if (layer_[from] != kNone) continue;
        layer_[from] = layer_[open[k]] + 1;
        open.push_back(from);
      }
    }
  }

  // The culprit; then the other suspects, ends of chains and cycles, unless they wait for a source.
  std::vector<std::size_t> find_sources(const Postmortem& found) {
    std::vector<std::size_t> candidates;
    for (const Suspect& suspect : found.suspects) {
      for (const std::int32_t rank : suspect.ranks) {
        if (at(rank) < found.positions.size()) candidates.push_back(classes_.of(rank));
      }
    }
    for (const bool is_end : {true, false}) {
      for (std::size_t k = 0; k < waiting_.size(); ++k) {
        if (classes_.all()[k].waits_for.empty() == is_end) candidates.push_back(k);
      }
    }
    std::vector<std::size_t> sources;
    for (const std::size_t candidate : candidates) {
      if (layer_[candidate] != kNone || is_isolated(candidate)) continue;
      sources.push_back(candidate);
      find_layers(sources);
    }
    return sources;
  }

  void place() {
    std::vector<std::vector<std::size_t>> layers;
    for (std::size_t k = 0; k < layer_.size(); ++k) {
      if (layer_[k] == kNone) {
        isolated_ranks_ += std::ssize(classes_.all()[k].ranks);
        continue;
      }
      const std::size_t layer = std::min(layer_[k], kMaxLayers - 1);
      layers.resize(std::max(layers.size(), layer + 1));
      layers[layer].push_back(k);
    }
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      std::vector<std::size_t>& members = layers[layer];
      std::ranges::stable_sort(members, {}, [&](std::size_t k) {
        const RankClass& each = classes_.all()[k];
        return std::pair(interest(each.role), -std::ssize(each.ranks));
      });
      for (std::size_t k = 0; k < members.size(); ++k) {
        const bool has_room = members.size() <= kMaxBoxesPerLayer || k + 1 < kMaxBoxesPerLayer;
        if (has_room || k + 1 == kMaxBoxesPerLayer) {
          boxes_.push_back({.classes = {}, .layer = layer, .column = k});
        }
        boxes_.back().classes.push_back(members[k]);
      }
    }
  }

  void connect() {
    std::vector<std::size_t> box_of(layer_.size(), kNone);
    for (std::size_t box = 0; box < boxes_.size(); ++box) {
      for (const std::size_t k : boxes_[box].classes) box_of[k] = box;
    }
    for (std::size_t k = 0; k < layer_.size(); ++k) {
      for (const std::size_t to : classes_.all()[k].waits_for) {
        arrows_.emplace(box_of[k], box_of[to]);
      }
    }
  }

  const RankClasses& classes_;
  std::vector<std::size_t> layer_;                 // by class
  std::vector<std::vector<std::size_t>> waiting_;  // by class: the classes that wait for it
  std::vector<GraphBox> boxes_;                    // by layer and column
  std::set<std::pair<std::size_t, std::size_t>> arrows_;
  std::int64_t isolated_ranks_ = 0;
};

class WaitGraphDrawing {
 public:
  WaitGraphDrawing(const RankClasses& classes, const GraphLayout& layout)
      : classes_(classes), layout_(layout) {
    std::size_t columns = 1;
    for (const GraphBox& box : layout.boxes()) columns = std::max(columns, box.column + 1);
    right_ = static_cast<int>(columns) * (kBoxWidth + kBoxGap) - kBoxGap;
  }

  std::string figure() {
    std::string arrows = up_arrows() + dashed_arrows();
    const int width = right_ + 16 + kTrack * gutters_;
    const int height =
        static_cast<int>(layout_.layers()) * (kBoxHeight + kLayerGap) - kLayerGap + 2 + below_;
    draw("<div class=\"scroll waitgraph\">\n<svg class=\"boxes\" width=\"{0}\" height=\"{1}\" ",
         width, height);
    draw("viewBox=\"0 0 {} {}\" tabindex=\"0\" role=\"group\" ", width, height);
    draw("aria-label=\"The wait-for graph; arrow keys move through the nodes\">\n");
    out_ += arrows;
    for (std::size_t layer = 0; layer < layout_.layers(); ++layer) {
      draw("<g class=\"row\">\n");
      for (const GraphBox& box : layout_.boxes()) {
        if (box.layer == layer) node(box);
      }
      draw("</g>\n");
    }
    draw("</svg>\n</div>\n");
    return std::move(out_);
  }

  // Arrows without room.
  [[nodiscard]] std::size_t omitted() const { return omitted_; }
  [[nodiscard]] bool has_dashed() const { return has_dashed_; }

 private:
  static constexpr int kBoxWidth = 268;
  static constexpr int kBoxHeight = 68;
  static constexpr int kBoxGap = 24;
  static constexpr int kLayerGap = 62;
  static constexpr int kTrack = 6;  // between parallel lines
  static constexpr int kTextLeft = 14;

  static int left(const GraphBox& box) {
    return static_cast<int>(box.column) * (kBoxWidth + kBoxGap);
  }
  static int top(const GraphBox& box) {
    return static_cast<int>(box.layer) * (kBoxHeight + kLayerGap) + 1;
  }
  static int bottom(const GraphBox& box) { return top(box) + kBoxHeight; }

  static std::string arrow_head(int x, int y, int direction) {
    return fmt::format("<path class=\"head\" d=\"M{} {}l-4.5 {}h9z\"/>\n", x, y, 9 * direction);
  }

  // From the top of a box to the bottom of one in the layer above.
  std::string up_arrows() const {
    std::string text;
    std::map<std::size_t, int> arriving;  // arrows of a box end side by side
    for (const auto& [from, to] : layout_.arrows()) {
      const GraphBox& a = layout_.boxes()[from];
      const GraphBox& b = layout_.boxes()[to];
      if (a.layer != b.layer + 1) continue;
      const int x1 = left(a) + kBoxWidth / 3;
      const int x2 = left(b) + kBoxWidth / 3 + 12 * arriving[to]++;
      const int y2 = bottom(b) + 2;
      const int bend = kLayerGap / 2;
      text += fmt::format("<path class=\"wait\" d=\"M{} {}C{} {} {} {} {} {}\"/>", x1, top(a), x1,
                          top(a) - bend, x2, y2 + bend + 6, x2, y2 + 6);
      text += arrow_head(x2, y2, 1);
    }
    return text;
  }

  // Lines with right angles: around the boxes at the right, if there are layers between.
  std::string dashed_arrows() {
    std::string text;
    std::size_t drawn = 0;
    std::map<std::size_t, int> tracks;  // in the gap below a layer
    for (const auto& [from, to] : layout_.arrows()) {
      const GraphBox& a = layout_.boxes()[from];
      const GraphBox& b = layout_.boxes()[to];
      if (a.layer == b.layer + 1 || from == to) continue;
      if (drawn == kMaxDashedArrows) {
        ++omitted_;
        continue;
      }
      const int start = left(a) + kBoxWidth * 3 / 4 + 8 * tracks[a.layer];
      const int y1 = bottom(a) + 14 + kTrack * (tracks[a.layer]++ % 6);
      text += fmt::format("<path class=\"wait back\" d=\"M{} {}V{}", start, bottom(a), y1);
      const int end = left(b) + kBoxWidth * 2 / 3 + 8 * static_cast<int>(drawn % 6);
      if (a.layer == b.layer) {
        text += fmt::format("H{}V{}\"/>", end, bottom(b) + 8) + arrow_head(end, bottom(b) + 1, 1);
        if (a.layer + 1 == layout_.layers()) below_ = std::max(below_, y1 - bottom(a) + 4);
      } else if (b.layer == a.layer + 1) {
        text += fmt::format("H{}V{}\"/>", end, top(b) - 8) + arrow_head(end, top(b) - 1, -1);
      } else {
        const int gutter = right_ + 10 + kTrack * gutters_++;
        const int y2 = top(b) - 14 - kTrack * (tracks[b.layer - 1]++ % 6);
        text += fmt::format("H{}V{}H{}V{}\"/>", gutter, y2, end, top(b) - 8) +
                arrow_head(end, top(b) - 1, -1);
      }
      has_dashed_ = true;
      ++drawn;
    }
    return text;
  }

  [[nodiscard]] std::string tooltip(const RankClass& found) const {
    std::string text = fmt::format("{}: {}", named_ranks(found.ranks), class_state(found));
    const std::string call = class_call(found);
    const std::string line = class_line(found);
    if (!call.empty()) text += "\n" + call;
    if (!line.empty()) text += "\nat " + line;
    if (found.first->state == Position::State::waits) {
      text += "\nwaits for: " + class_waits_for(found);
    }
    return text;
  }

  void node(const GraphBox& box) {
    const std::size_t first = box.classes.front();
    if (box.classes.size() > 1) return others(box);
    const RankClass& found = classes_.all()[first];
    const std::int64_t ranks = std::ssize(found.ranks);
    draw("<g class=\"m {}\" data-d=\"{}\" transform=\"translate({} {})\">", css_class(found.role),
         first, left(box), top(box));
    draw("<rect class=\"card\" width=\"{}\" height=\"{}\" rx=\"5\"/>", kBoxWidth, kBoxHeight);
    draw("<rect class=\"edge\" width=\"6\" height=\"{}\"/>", kBoxHeight);
    text_line(20, "who", truncated(named_ranks(found.ranks), ranks > 1 ? 21 : 30));
    if (ranks > 1) {
      draw("<text x=\"{}\" y=\"20\" class=\"end soft\">{}</text>", kBoxWidth - 10,
           counted(ranks, "rank"));
    }
    const bool is_suspect = found.role <= RankRole::suspect;
    std::string state = (is_suspect ? "suspect: " : "") + class_state(found);
    if (found.waits_for.contains(first)) state += ", for one another";
    text_line(39, "", truncated(state, 34));
    text_line(57, "soft", truncated(class_line(found), 34));
    draw("<title>{}</title></g>\n", escaped(tooltip(found)));
  }

  // The box of the classes that have no box of their own.
  void others(const GraphBox& box) {
    std::vector<std::int32_t> ranks;
    for (const std::size_t k : box.classes) {
      const RankClass& found = classes_.all()[k];
      ranks.insert(ranks.end(), found.ranks.begin(), found.ranks.end());
    }
    draw("<g class=\"m others\" transform=\"translate({} {})\">", left(box), top(box));
    draw("<rect class=\"card\" width=\"{}\" height=\"{}\" rx=\"5\"/>", kBoxWidth, kBoxHeight);
    text_line(20, "who", fmt::format("{} other places", box.classes.size()));
    draw("<text x=\"{}\" y=\"20\" class=\"end soft\">{}</text>", kBoxWidth - 10,
         counted(std::ssize(ranks), "rank"));
    text_line(39, "", truncated(named_ranks(ranks), 34));
    text_line(57, "soft", "see the table above");
    draw("<title>{}: {}, {}</title></g>\n", counted(std::ssize(ranks), "rank"),
         fmt::format("{} places", box.classes.size()), escaped(named_ranks(ranks)));
  }

  void text_line(int y, std::string_view text_class, const std::string& text) {
    draw("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>", kTextLeft, y, text_class, escaped(text));
  }

  template <typename... Values>
  void draw(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  const RankClasses& classes_;
  const GraphLayout& layout_;
  int right_ = 0;    // of the boxes
  int gutters_ = 0;  // lines at the right of the boxes
  int below_ = 0;    // room for lines below the last layer
  bool has_dashed_ = false;
  std::size_t omitted_ = 0;
  std::string out_;
};

}  // namespace

Panel wait_graph_panel(const Postmortem& found, const RankClasses& classes) {
  const GraphLayout layout(found, classes);
  Panel panel{.title = "What waits for what"};
  if (layout.arrows().empty()) {
    panel.note = "Every pending call was entered by all of its ranks.";
    return panel;
  }
  WaitGraphDrawing drawing(classes, layout);
  panel.body = {drawing.figure()};
  panel.note =
      "The wait-for graph. An arrow leads from ranks that wait to the ranks that they wait for; "
      "ranks at the same line that wait for the same nodes share a node.";
  if (!found.suspects.empty()) panel.note += " The main suspect is at the top.";
  if (drawing.has_dashed()) {
    panel.note += " Dashed arrows do not lead towards the top; some of them close a wait cycle.";
  }
  if (drawing.omitted() > 0) {
    panel.note += fmt::format(" {} are left out.",
                              counted(static_cast<std::int64_t>(drawing.omitted()), "other arrow"));
  }
  if (layout.isolated_ranks() > 0) {
    panel.note += fmt::format(" Left out: {} that no rank waits for and that wait for none.",
                              counted(layout.isolated_ranks(), "rank"));
  }
  panel.by_hand = "Point at a node to see its call and to highlight its ranks above.";
  return panel;
}

}  // namespace shiplap::report
