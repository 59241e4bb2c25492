#include "shiplap/cli/dispatch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "shiplap/base/units.h"
#include "shiplap/cli/dispatch_report_internal.h"
#include "shiplap/cli/table.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/matrix.h"
#include "shiplap/report/page.h"
#include "shiplap/report/ranges.h"

namespace shiplap::cli {
namespace dispatch_page {
namespace {

constexpr std::size_t kMostRanksNamed = 6;  // in the facts of a box

// The sign is not to be parted from its number.
std::string traffic_percent(double part) {
  if (part > 0 && part < 0.005) return "<1\u00A0%";
  return fmt::format("{:.0f}\u00A0%", 100 * part);
}

std::string title_of(const Numbers& about) {
  std::string title =
      fmt::format("{}, {}, CP up to {}: ", counted(about.ranks, "rank"),
                  counted(std::ssize(about.documents), "document"), about.most_items);
  if (about.between_ranks().count == 0) return title + "no token leaves its rank";
  title += fmt::format("each token's keys travel {:.1f} times; ", about.trips());
  if (!about.has_nodes()) return title + "all within one node";
  return title + traffic_percent(about.crossing()) + " of the bytes cross nodes";
}

report::KeyNumber largest_pair(const Numbers& about) {
  const Flow& q = about.q.summary.largest;
  const Flow& kv = about.kv.summary.largest;
  const bool is_kv = about.kv.bytes(kv.tokens) >= about.q.bytes(q.tokens);
  const Flow& flow = is_kv ? kv : q;
  if (flow.tokens == 0) return {.label = "Largest pair of ranks", .value = "none"};
  return {.label = "Largest pair of ranks",
          .value = to_string(is_kv ? about.kv.bytes(kv.tokens) : about.q.bytes(q.tokens)),
          .note = fmt::format("{}, rank {} to rank {}", is_kv ? "keys and values" : "queries",
                              flow.from, flow.to)};
}

std::string pairs_text(double pairs) {
  if (pairs < 1e7) return with_separators(static_cast<std::int64_t>(pairs));
  if (pairs < 1e9) return fmt::format("{:.3g} million", pairs / 1e6);
  return with_separators(std::llround(pairs / 1e9)) + " billion";
}

std::vector<report::KeyNumber> key_numbers(const Numbers& about) {
  const int nodes = (about.ranks + about.ranks_per_node - 1) / about.ranks_per_node;
  return {
      {.label = "Between ranks, one way",
       .value = to_string(about.between_ranks()),
       .note = fmt::format("queries {}, keys and values {}", to_string(about.q.between_ranks()),
                           to_string(about.kv.between_ranks()))},
      {.label = "Of that across nodes",
       .value = about.has_nodes() ? traffic_percent(about.crossing()) : "one node",
       .note = about.has_nodes()
                   ? fmt::format("{}; {} nodes", to_string(about.between_nodes()), nodes)
                   : ""},
      {.label = "Attention work, most / mean",
       .value = fmt::format("{:.2f}", about.imbalance()),
       .note = fmt::format("rank {}: {} causal pairs", about.busiest,
                           pairs_text(about.pairs[about.busiest]))},
      largest_pair(about),
  };
}

std::vector<report::KeyNumber> more_numbers(const DispatchReport& about, const Numbers& known) {
  const dispatch::QkvDispatch& made = about.dispatch;
  const Bytes metadata = made.q.forward.bytes() + made.q.reverse.bytes() + made.kv.forward.bytes() +
                         made.kv.reverse.bytes() + made.attention.bytes();
  return {{.label = "tokens", .value = number(known.tokens)},
          {.label = "documents", .value = with_separators(std::ssize(known.documents))},
          {.label = "items", .value = with_separators(known.items)},
          {.label = "copies of a token's keys",
           .value = fmt::format("{:.2f}", known.tokens == 0
                                              ? 0.0
                                              : static_cast<double>(known.kv.summary.tokens) /
                                                    static_cast<double>(known.tokens)),
           .note = "with those that stay"},
          {.label = "metadata, all tables", .value = to_string(metadata)}};
}

std::vector<std::string> assumptions(const DispatchReport& about) {
  return {fmt::format("A token's query has {}, its key and value {}.",
                      to_string(Bytes{about.q_row_bytes}), to_string(Bytes{about.kv_row_bytes})),
          fmt::format("{} consecutive ranks share a node.", about.ranks_per_node),
          "Attention is causal, so an item needs its document's keys up to its own end.",
          "Bytes are those of the way there; as many rows come back."};
}

std::string ranks_as_text(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  std::size_t shown = 0;
  for (const int rank : ranks) {
    if (shown == kMostRanksNamed) return text + fmt::format(" and {} more", ranks.size() - shown);
    text += fmt::format("{} {}", shown++ == 0 ? "" : ",", rank);
  }
  return text;
}

// "document 3, tokens 128 to 255 of 1,024"
std::string range_text(const Segment& segment, const Places& places) {
  return fmt::format("document {}, tokens {} to {} of {}", segment.document, number(segment.begin),
                     number(segment.end() - 1), number(places.tokens));
}

class Lanes {
 public:
  Lanes(const DispatchReport& about, const Numbers& numbers) : about_(about), numbers_(numbers) {
    for (const auto& [document, places] : numbers.documents) {
      order_.emplace(document, std::ssize(order_));
    }
  }

  [[nodiscard]] report::Ranges of(std::span<const int> ranks) const {
    report::LaneBlock home{.title = "At home: tokens in the order of the buffer", .names = "rank"};
    report::LaneBlock attention{
        .title =
            "At attention: items in the order of the key buffer, dashed the "
            "length of the longest lane at home",
        .names = "rank"};
    const bool all = std::ssize(ranks) == numbers_.ranks;  // else a border would stand for many
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const int node = ranks[i] / about_.ranks_per_node;
      const bool rule = all && i > 0 && node != ranks[i - 1] / about_.ranks_per_node;
      const std::string name = std::to_string(ranks[i]);
      home.lanes.push_back({.name = name, .boxes = home_boxes(ranks[i]), .rule_above = rule});
      attention.lanes.push_back({.name = name, .boxes = items(ranks[i]), .rule_above = rule});
    }
    for (const report::Lane& lane : home.lanes) {
      if (!lane.boxes.empty()) attention.mark = std::max(attention.mark, lane.boxes.back().end());
    }
    return {.blocks = {home, attention}, .groups = std::max<std::int64_t>(1, std::ssize(order_))};
  }

 private:
  [[nodiscard]] report::Box box(const Range& range) const {
    return {.group = order_.at(range.segment.document),
            .label = std::to_string(range.segment.document)};
  }

  [[nodiscard]] std::vector<report::Box> home_boxes(int rank) const {
    std::vector<report::Box> boxes;
    for (const Range& range : ranges_at_home(about_, rank)) {
      const Places& places = numbers_.documents.at(range.segment.document);
      report::Box& made = boxes.emplace_back(box(range));
      made.begin = range.offset;
      made.length = range.segment.length;
      made.facts = fmt::format("{}\nat home on rank {}, offset {}\nattends on {}",
                               range_text(range.segment, places), rank, number(range.offset),
                               ranks_as_text(places.attention));
    }
    return boxes;
  }

  [[nodiscard]] std::vector<report::Box> items(int rank) const {
    std::vector<report::Box> boxes;
    for (const Range& range : ranges_at_attention(about_, rank)) {
      const Places& places = numbers_.documents.at(range.segment.document);
      report::Box& made = boxes.emplace_back(box(range));
      made.begin = range.keys_offset;
      made.length = range.keys;
      made.pale = whole(range.keys) - range.segment.length;
      made.facts = fmt::format(
          "{}\n{} queries on rank {}, offset {}\nneed {} keys, offset {}\nat home on {}",
          range_text(range.segment, places), number(range.segment.length), rank,
          number(range.offset), number(range.keys), number(range.keys_offset),
          ranks_as_text(places.home));
    }
    return boxes;
  }

  const DispatchReport& about_;
  const Numbers& numbers_;
  std::map<std::int32_t, std::int64_t> order_;  // of documents, on the ramp
};

report::Panel ranges_panel(const DispatchReport& about, const Numbers& known, const Drawn& drawn) {
  report::Panel panel{
      .title = "Which tokens of which document go where",
      .note =
          "A row is a rank, a box some consecutive tokens of a document, its number the "
          "document's." +
          drawn.limit,
      .by_hand = "Point at a box, or use the arrow keys, to see all of its document."};
  if (known.documents.empty()) return panel;
  panel.body = to_html(report::Legend{
      {{.swatch = report::Swatch::ramp,
        .text = fmt::format("documents {} to {}, in order", known.documents.begin()->first,
                            known.documents.rbegin()->first)},
       {.swatch = report::Swatch::solid, .text = "tokens at home; at attention, an item's queries"},
       {.swatch = report::Swatch::pale,
        .text = "keys of earlier tokens that the item needs too"}}});
  panel.body += to_html(Lanes(about, known).of(drawn.ranks));
  return panel;
}

report::Html matrix_of(std::string_view name, const Exchange& exchange, const Numbers& known) {
  report::Matrix matrix{
      .name = std::string(name), .ranks = known.ranks, .ranks_per_node = known.ranks_per_node};
  for (const Flow& flow : exchange.flows) {
    matrix.cells.push_back(
        {.from = flow.from, .to = flow.to, .bytes = exchange.bytes(flow.tokens).count});
  }
  return to_html(matrix);
}

report::Panel matrices_panel(const Numbers& known) {
  return {.title = "How many bytes go from which rank to which",
          .note = "One way. Totals at the margins leave out what stays on its rank.",
          .body = report::side_by_side({matrix_of("Queries", known.q, known),
                                        matrix_of("Keys and values", known.kv, known)})};
}

}  // namespace
}  // namespace dispatch_page

report::Page dispatch_page_of(const DispatchReport& about) {
  using namespace dispatch_page;
  const Numbers known = numbers_of(about);
  const Drawn drawn = drawn_ranks(known);
  report::Page page{.title = title_of(known),
                    .numbers = key_numbers(known),
                    .more = more_numbers(about, known),
                    .assumed = assumptions(about),
                    .command = about.command,
                    .version = about.version};
  if (!about.measured.empty()) page.panels.push_back(measured_panel(about));
  page.panels.push_back(ranges_panel(about, known, drawn));
  page.panels.push_back(matrices_panel(known));
  page.panels.push_back(ranks_panel(about, known));
  page.panels.push_back(ranges_table_panel(about, drawn));
  page.panels.push_back(pairs_panel(known));
  return page;
}

std::string dispatch_report(const DispatchReport& about) {
  return to_html(dispatch_page_of(about));
}

}  // namespace shiplap::cli
