#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/base/version.h"
#include "shiplap/report/dispatch.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/matrix.h"
#include "shiplap/report/quantities_internal.h"
#include "shiplap/report/ranges.h"
#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using dispatch::ExchangeSummary;
using dispatch::Flow;
using dispatch::RankPair;
using dispatch::Segment;

constexpr std::size_t kMaxRanksNamed = 6;  // in a tooltip
constexpr std::size_t kMaxRangesListed = 1000;
constexpr std::size_t kMaxPairsListed = 40;

std::int64_t whole(std::uint64_t number) { return static_cast<std::int64_t>(number); }
std::string number(std::uint64_t value) { return with_separators(whole(value)); }

// The ranks with pieces of a document.
struct DocumentPlacement {
  std::uint64_t tokens = 0;
  int items = 0;
  std::set<int> home;
  std::set<int> attention;
};

// Numbers that several panels of the page use.
struct Numbers {
  dispatch::Summary all;
  std::map<std::int32_t, DocumentPlacement> documents;
  std::uint64_t tokens = 0;  // of them
  std::int64_t items = 0;
  int max_items = 0;  // of one document

  [[nodiscard]] Bytes between_ranks() const {
    return all.q().between_ranks() + all.kv().between_ranks();
  }
  [[nodiscard]] Bytes between_nodes() const {
    return all.q().between_nodes() + all.kv().between_nodes();
  }
  [[nodiscard]] bool has_nodes() const { return all.ranks > all.ranks_per_node; }
  [[nodiscard]] double crossing() const {
    if (between_ranks().count == 0) return 0;
    return static_cast<double>(between_nodes().count) / static_cast<double>(between_ranks().count);
  }
  // Moves per token.
  [[nodiscard]] double per_token(std::uint64_t moved) const {
    return tokens == 0 ? 0 : static_cast<double>(moved) / static_cast<double>(tokens);
  }
};

std::map<std::int32_t, DocumentPlacement> placements_of(const dispatch::Routing& routing) {
  std::map<std::int32_t, DocumentPlacement> places;
  for (int rank = 0; rank < routing.home.world_size(); ++rank) {
    for (const Segment& segment : routing.home.of(rank)) {
      DocumentPlacement& place = places[segment.document];
      place.tokens += segment.length;
      if (segment.length > 0) place.home.insert(rank);
    }
    for (const Segment& item : routing.attention.of(rank)) {
      DocumentPlacement& place = places[item.document];
      if (item.length == 0) continue;
      ++place.items;
      place.attention.insert(rank);
    }
  }
  return places;
}

Numbers numbers_of(const DispatchView& view) {
  ensure(std::min(view.sizes.q_row_bytes, view.sizes.kv_row_bytes) > 0,
         "the page of a dispatch has the bytes of a token");
  Numbers result{.all = summarize(view.dispatch, view.sizes),
                 .documents = placements_of(*view.routing)};
  for (const auto& [document, places] : result.documents) {
    result.tokens += places.tokens;
    result.items += places.items;
    result.max_items = std::max(result.max_items, places.items);
  }
  return result;
}

// The ranks whose lanes are drawn, in order.
struct DrawnRanks {
  std::vector<int> ranks;
  std::string limit;  // describes the omitted ranks, if any
};

DrawnRanks drawn_ranks(const dispatch::Summary& summary, const DispatchPageLimits& limits) {
  std::vector<int> all(at(summary.ranks));
  std::iota(all.begin(), all.end(), 0);
  if (summary.ranks <= limits.lanes) return {.ranks = all};
  const std::size_t each = limits.some_ranks;
  std::set<int> some(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(each));
  std::ranges::stable_sort(all, {}, [&](int rank) { return summary.work[rank]; });
  some.insert(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(each));
  some.insert(all.end() - static_cast<std::ptrdiff_t>(each), all.end());
  return {
      .ranks = {some.begin(), some.end()},
      .limit = fmt::format(" {1} of {0} ranks are drawn: the first {2}, and the {3} with the least "
                           "and the {4} with the most attention work.",
                           with_separators(summary.ranks), some.size(), each, each, each)};
}

// One segment or item, with the data of its tooltip.
struct TokenRange {
  Segment segment;
  std::uint32_t offset = 0;  // among the tokens of its rank
  std::uint32_t keys = 0;    // only at attention
  std::uint32_t keys_offset = 0;
};

// In the order of the buffers, without empty ones.
std::vector<TokenRange> ranges_at_home(const DispatchView& view, int rank) {
  std::vector<TokenRange> ranges;
  std::uint32_t offset = 0;
  for (const Segment& segment : view.routing->home.of(rank)) {
    if (segment.length > 0) ranges.push_back({.segment = segment, .offset = offset});
    offset += segment.length;
  }
  return ranges;
}

std::vector<TokenRange> ranges_at_attention(const DispatchView& view, int rank) {
  const std::span<const std::uint32_t> q = view.dispatch.attention.cu_seqlens_q(rank);
  std::vector<TokenRange> ranges;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    const Segment& item = view.routing->attention.of(rank)[i];
    if (item.length == 0) continue;
    const dispatch::KeyRange keys = view.dispatch.attention.keys(rank, static_cast<int>(i));
    ranges.push_back({.segment = item,
                      .offset = q[i],
                      .keys = static_cast<std::uint32_t>(keys.length()),
                      .keys_offset = static_cast<std::uint32_t>(keys.begin)});
  }
  return ranges;
}

// With a no-break space before the sign.
std::string traffic_percent(double part) {
  if (part > 0 && part < 0.005) return "<1\u00A0%";
  return fmt::format("{:.0f}\u00A0%", 100 * part);
}

std::string title_of(const Numbers& numbers) {
  std::string title =
      fmt::format("{}, {}, CP up to {}: ", counted(numbers.all.ranks, "rank"),
                  counted(std::ssize(numbers.documents), "document"), numbers.max_items);
  if (numbers.between_ranks().count == 0) return title + "no token leaves its rank";
  title += fmt::format("each token's keys travel {:.1f} times; ",
                       numbers.per_token(numbers.all.kv().traffic.between_ranks));
  if (!numbers.has_nodes()) return title + "all within one node";
  return title + traffic_percent(numbers.crossing()) + " of the bytes cross nodes";
}

KeyNumber largest_pair(const Numbers& numbers) {
  const Flow& q = numbers.all.q().traffic.largest;
  const Flow& kv = numbers.all.kv().traffic.largest;
  const bool is_kv = numbers.all.kv().bytes(kv.tokens) >= numbers.all.q().bytes(q.tokens);
  const Flow& flow = is_kv ? kv : q;
  if (flow.tokens == 0) return {.label = "Largest pair of ranks", .value = "none"};
  return {.label = "Largest pair of ranks",
          .value = is_kv ? numbers.all.kv().bytes(kv.tokens) : numbers.all.q().bytes(q.tokens),
          .note = fmt::format("{}, rank {} to rank {}", is_kv ? "keys and values" : "queries",
                              flow.from, flow.to)};
}

std::string pairs_text(double pairs) {
  if (pairs < 1e7) return with_separators(static_cast<std::int64_t>(pairs));
  if (pairs < 1e9) return fmt::format("{:.3g} million", pairs / 1e6);
  return with_separators(std::llround(pairs / 1e9)) + " billion";
}

std::vector<KeyNumber> key_numbers(const Numbers& numbers) {
  const int nodes =
      (numbers.all.ranks + numbers.all.ranks_per_node - 1) / numbers.all.ranks_per_node;
  return {
      {.label = "Between ranks, one way",
       .value = numbers.between_ranks(),
       .note = fmt::format("queries {}, keys and values {}", numbers.all.q().between_ranks(),
                           numbers.all.kv().between_ranks())},
      {.label = "Of that across nodes",
       .value = numbers.has_nodes() ? traffic_percent(numbers.crossing()) : "one node",
       .note =
           numbers.has_nodes() ? fmt::format("{}; {} nodes", numbers.between_nodes(), nodes) : ""},
      {.label = "Attention work, most / mean",
       .value = fmt::format("{:.2f}", numbers.all.imbalance),
       .note = fmt::format("rank {}: {} {}pairs", numbers.all.busiest,
                           pairs_text(numbers.all.work[numbers.all.busiest]),
                           numbers.all.mask.is_causal() ? "causal " : "")},
      largest_pair(numbers),
  };
}

std::vector<KeyNumber> more_numbers(const DispatchView& view, const Numbers& numbers) {
  return {{.label = "tokens", .value = number(numbers.tokens)},
          {.label = "documents", .value = with_separators(std::ssize(numbers.documents))},
          {.label = "items", .value = with_separators(numbers.items)},
          {.label = "copies of a token's keys",
           .value = fmt::format("{:.2f}", numbers.per_token(numbers.all.kv().traffic.tokens)),
           .note = "including local copies"},
          {.label = "metadata, all tables",
           .value = numbers.all.tables + view.dispatch.attention.bytes()}};
}

std::vector<std::string> assumptions(const DispatchView& view) {
  std::vector<std::string> sentences = view.assumed;
  sentences.push_back(fmt::format("A token's query has {}, its key and value {}.",
                                  Bytes{view.sizes.q_row_bytes}, Bytes{view.sizes.kv_row_bytes}));
  sentences.push_back(fmt::format("{} consecutive ranks share a node.", view.sizes.ranks_per_node));
  const dispatch::Mask& mask = view.dispatch.attention.mask();
  sentences.push_back(
      mask.is_causal()
          ? "Attention is causal, so an item needs its document's keys up to its own end."
          : fmt::format("The attention mask is {}; an item has the keys that it asks for.",
                        to_string(mask)));
  sentences.emplace_back("Bytes count the forward exchange; as many rows return.");
  return sentences;
}

std::string ranks_as_text(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  std::size_t shown = 0;
  for (const int rank : ranks) {
    if (shown == kMaxRanksNamed) return text + fmt::format(" and {} more", ranks.size() - shown);
    text += fmt::format("{} {}", shown++ == 0 ? "" : ",", rank);
  }
  return text;
}

// "document 3, tokens 128 to 255 of 1,024"
std::string range_text(const Segment& segment, const DocumentPlacement& places) {
  return fmt::format("document {}, tokens {} to {} of {}", segment.document, number(segment.begin),
                     number(segment.end() - 1), number(places.tokens));
}

class DispatchLanes {
 public:
  DispatchLanes(const DispatchView& view, const Numbers& numbers) : view_(view), numbers_(numbers) {
    for (const auto& [document, places] : numbers.documents) {
      order_.emplace(document, std::ssize(order_));
    }
  }

  [[nodiscard]] Ranges of(std::span<const int> ranks) const {
    LaneBlock home{.title = "At home: tokens in the order of the buffer", .names = "rank"};
    LaneBlock attention{.title =
                            "At attention: items in the order of the key buffer, dashed the "
                            "length of the longest lane at home",
                        .names = "rank"};
    const bool all = std::ssize(ranks) == numbers_.all.ranks;  // otherwise borders are ambiguous
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const int node = ranks[i] / view_.sizes.ranks_per_node;
      const bool rule = all && i > 0 && node != ranks[i - 1] / view_.sizes.ranks_per_node;
      const std::string name = std::to_string(ranks[i]);
      home.lanes.push_back({.name = name, .boxes = home_boxes(ranks[i]), .rule_above = rule});
      attention.lanes.push_back({.name = name, .boxes = items(ranks[i]), .rule_above = rule});
    }
    for (const Lane& lane : home.lanes) {
      if (!lane.boxes.empty()) attention.mark = std::max(attention.mark, lane.boxes.back().end());
    }
    return {.blocks = {home, attention},
            .groups = std::max<std::int64_t>(1, std::ssize(order_)),
            .max_boxes = view_.limits.boxes};
  }

 private:
  [[nodiscard]] Box box(const TokenRange& range) const {
    return {.group = order_.at(range.segment.document),
            .label = std::to_string(range.segment.document)};
  }

  [[nodiscard]] std::vector<Box> home_boxes(int rank) const {
    std::vector<Box> boxes;
    for (const TokenRange& range : ranges_at_home(view_, rank)) {
      const DocumentPlacement& places = numbers_.documents.at(range.segment.document);
      Box& made = boxes.emplace_back(box(range));
      made.begin = range.offset;
      made.length = range.segment.length;
      made.facts = fmt::format("{}\nat home on rank {}, offset {}\nattends on {}",
                               range_text(range.segment, places), rank, number(range.offset),
                               ranks_as_text(places.attention));
    }
    return boxes;
  }

  [[nodiscard]] std::vector<Box> items(int rank) const {
    std::vector<Box> boxes;
    for (const TokenRange& range : ranges_at_attention(view_, rank)) {
      const DocumentPlacement& places = numbers_.documents.at(range.segment.document);
      Box& made = boxes.emplace_back(box(range));
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

  const DispatchView& view_;
  const Numbers& numbers_;
  std::map<std::int32_t, std::int64_t> order_;  // of documents, on the ramp
};

Panel ranges_panel(const DispatchView& view, const Numbers& numbers, const DrawnRanks& drawn) {
  Panel panel{.title = "Where the tokens of each document go",
              .note =
                  "A row is a rank, a box some consecutive tokens of a document, its number the "
                  "document's." +
                  drawn.limit,
              .by_hand = "Point at a box, or use the arrow keys, to highlight its document."};
  if (numbers.documents.empty()) return panel;
  panel.body = to_html(
      Legend{{{.swatch = Swatch::ramp,
               .text = fmt::format("documents {} to {}, in order", numbers.documents.begin()->first,
                                   numbers.documents.rbegin()->first)},
              {.swatch = Swatch::solid, .text = "tokens at home; at attention, an item's queries"},
              {.swatch = Swatch::pale, .text = "keys of earlier tokens that the item needs too"}}});
  panel.body += to_html(DispatchLanes(view, numbers).of(drawn.ranks));
  return panel;
}

Html matrix_of(std::string_view name, const ExchangeSummary& exchange,
               const dispatch::Summary& summary, int max_rows) {
  Matrix matrix{.name = std::string(name),
                .ranks = summary.ranks,
                .ranks_per_node = summary.ranks_per_node,
                .max_rows = max_rows,
                .cells = {}};
  for (const Flow& flow : exchange.flows) {
    matrix.cells.push_back(
        {.from = flow.from, .to = flow.to, .bytes = exchange.bytes(flow.tokens).count});
  }
  return to_html(matrix);
}

Panel matrices_panel(const dispatch::Summary& summary, int max_rows) {
  return {.title = "Bytes from rank to rank",
          .note = "One direction. The totals at the margins exclude bytes that stay on their rank.",
          .body = side_by_side({matrix_of("Queries", summary.q(), summary, max_rows),
                                matrix_of("Keys and values", summary.kv(), summary, max_rows)})};
}

// Bytes sent to and received from other ranks, by rank.
struct RankTraffic {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

RankTraffic traffic_of(const dispatch::Summary& summary) {
  RankTraffic traffic{.sent = std::vector<std::int64_t>(at(summary.ranks)),
                      .received = std::vector<std::int64_t>(at(summary.ranks))};
  for (const ExchangeSummary* exchange : {&summary.q(), &summary.kv()}) {
    for (const Flow& flow : exchange->flows) {
      if (flow.from == flow.to) continue;
      traffic.sent[flow.from] += exchange->bytes(flow.tokens).count;
      traffic.received[flow.to] += exchange->bytes(flow.tokens).count;
    }
  }
  return traffic;
}

// Returns false if the table is full.
bool list_ranges(Table& table, std::string_view where, int rank,
                 std::span<const TokenRange> ranges) {
  for (const TokenRange& range : ranges) {
    if (table.rows() == kMaxRangesListed) return false;
    const bool has_keys = range.keys > 0;
    table.add({std::to_string(rank), std::string(where), std::to_string(range.segment.document),
               number(range.segment.begin), number(range.segment.end() - 1),
               number(range.segment.length), number(range.offset),
               has_keys ? number(range.keys) : "", has_keys ? number(range.keys_offset) : ""});
  }
  return true;
}

Panel measured_panel(const DispatchView& view) {
  Table table({Column::text("exchange"), Column::numbers("time"), Column::numbers("bytes"),
               Column::numbers("bandwidth")});
  for (const dispatch::ExchangeTimes& times : view.benchmark->exchanges) {
    table.add({times.name, times.median, times.bytes,
               times.median > Seconds{0} ? Cell(times.bytes / times.median) : Cell("")});
  }
  return {.title = "Measured" + (view.backend.empty() ? "" : " on " + view.backend),
          .note = "A measurement on this machine, not a prediction for another.",
          .body = to_html(table)};
}

Panel ranks_panel(const DispatchView& view, const dispatch::Summary& summary) {
  const RankTraffic traffic = traffic_of(summary);
  std::vector<std::int64_t> all = traffic.sent;
  all.insert(all.end(), traffic.received.begin(), traffic.received.end());
  const ByteColumn bytes(all);
  const bool in_millions = summary.work[summary.busiest] >= 1e7;
  Table table({Column::numbers("rank"), Column::numbers("tokens at home"),
               Column::numbers("queries"), Column::numbers("keys"),
               Column::numbers(fmt::format("sent, {}", bytes.unit())),
               Column::numbers(fmt::format("received, {}", bytes.unit())),
               Column::numbers(in_millions ? "attention pairs, million" : "attention pairs"),
               Column::numbers("of the mean")});
  for (int rank = 0; rank < summary.ranks; ++rank) {
    const double pairs = summary.work[rank];
    table.add({std::to_string(rank), number(view.routing->home.tokens(rank)),
               number(view.dispatch.attention.cu_seqlens_q(rank).back()),
               number(view.dispatch.attention.num_kv_tokens(rank)), bytes.cell(traffic.sent[rank]),
               bytes.cell(traffic.received[rank]),
               in_millions ? fmt::format("{:.1f}", pairs / 1e6)
                           : with_separators(static_cast<std::int64_t>(pairs)),
               fmt::format("{:.2f}", summary.mean_work == 0 ? 1 : pairs / summary.mean_work)});
  }
  return {.title = "Rank by rank",
          .note =
              "Sent and received count queries, keys and values, one direction, without bytes "
              "that stay on their rank.",
          .body = to_html(table)};
}

Panel ranges_table_panel(const DispatchView& view, const DrawnRanks& drawn) {
  Table table({Column::numbers("rank"), Column::text("where"), Column::numbers("document"),
               Column::numbers("first token"), Column::numbers("last token"),
               Column::numbers("tokens"), Column::numbers("offset"), Column::numbers("keys"),
               Column::numbers("offset of the keys")});
  bool all = true;
  for (const int rank : drawn.ranks) {
    all = all && list_ranges(table, "home", rank, ranges_at_home(view, rank)) &&
          list_ranges(table, "attention", rank, ranges_at_attention(view, rank));
  }
  std::string note = "The boxes of the picture, in the order of the buffers.";
  if (!all) {
    note += fmt::format(" Only the first {}.", number(kMaxRangesListed));
  }
  return {.title = "Range by range",
          .note = note + drawn.limit,
          .body = to_html(table),
          .starts = Panel::Starts::folded};
}

Panel pairs_panel(const dispatch::Summary& summary) {
  const std::size_t shown = std::min(summary.pairs.size(), kMaxPairsListed);
  Table table({Column::numbers("from rank"), Column::numbers("to rank"), Column::numbers("queries"),
               Column::numbers("keys and values"), Column::numbers("together")});
  for (const RankPair& pair : std::span(summary.pairs).first(shown)) {
    table.add({std::to_string(pair.from), std::to_string(pair.to), pair.q, pair.kv, pair.total()});
  }
  return {.title = "The largest pairs of ranks",
          .note = fmt::format("{} of {} pairs that exchange data.", shown,
                              number(summary.pairs.size())),
          .body = to_html(table),
          .starts = Panel::Starts::folded};
}

}  // namespace

Page dispatch_page(const DispatchView& view, const std::string& command) {
  ensure(view.routing != nullptr, "the page of a dispatch has its routing");
  const Numbers numbers = numbers_of(view);
  const DrawnRanks drawn = drawn_ranks(numbers.all, view.limits);
  Page page{.title = title_of(numbers),
            .numbers = key_numbers(numbers),
            .more = more_numbers(view, numbers),
            .assumed = assumptions(view),
            .command = command,
            .version = command.empty() ? "" : std::string(version())};
  if (view.benchmark != nullptr) page.panels.push_back(measured_panel(view));
  page.panels.push_back(ranges_panel(view, numbers, drawn));
  page.panels.push_back(matrices_panel(numbers.all, view.limits.matrix_rows));
  page.panels.push_back(ranks_panel(view, numbers.all));
  page.panels.push_back(ranges_table_panel(view, drawn));
  page.panels.push_back(pairs_panel(numbers.all));
  return page;
}

}  // namespace shiplap::report
