#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "shiplap/cli/dispatch_report_internal.h"
#include "shiplap/cli/table.h"
#include "shiplap/report/table.h"

namespace shiplap::cli::dispatch_page {
namespace {

constexpr std::size_t kMostRangesListed = 1000;
constexpr std::size_t kMostPairsListed = 40;

// Bytes to and from other ranks, by rank.
struct Load {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
};

Load load_of(const Numbers& known) {
  Load load{.sent = std::vector<std::int64_t>(at(known.ranks)),
            .received = std::vector<std::int64_t>(at(known.ranks))};
  for (const Exchange* exchange : {&known.q, &known.kv}) {
    for (const Flow& flow : exchange->flows) {
      if (flow.from == flow.to) continue;
      load.sent[flow.from] += exchange->bytes(flow.tokens).count;
      load.received[flow.to] += exchange->bytes(flow.tokens).count;
    }
  }
  return load;
}

void list_ranges(report::Table& table, std::string_view where, int rank,
                 std::span<const Range> ranges) {
  for (const Range& range : ranges) {
    const bool has_keys = range.keys > 0;
    table.rows.push_back({std::to_string(rank), std::string(where),
                          std::to_string(range.segment.document), number(range.segment.begin),
                          number(range.segment.end() - 1), number(range.segment.length),
                          number(range.offset), has_keys ? number(range.keys) : "",
                          has_keys ? number(range.keys_offset) : ""});
  }
}

// What one rank sends another.
struct Pair {
  int from = 0;
  int to = 0;
  Bytes q;
  Bytes kv;
  [[nodiscard]] Bytes together() const { return q + kv; }
};

// The largest first; of equal ones the first by rank.
std::vector<Pair> pairs_of(const Numbers& known) {
  std::vector<Pair> all;
  for (const Flow& flow : known.q.flows) {
    all.push_back({.from = flow.from, .to = flow.to, .q = known.q.bytes(flow.tokens)});
  }
  const auto ranks = [](const auto& each) { return std::pair(each.from, each.to); };
  // Keys go wherever queries of theirs go, and further. Both lists are in order.
  const std::size_t with_queries = all.size();
  std::size_t i = 0;
  for (const Flow& flow : known.kv.flows) {
    while (i < with_queries && ranks(all[i]) < ranks(flow)) ++i;
    const Bytes bytes = known.kv.bytes(flow.tokens);
    if (i < with_queries && ranks(all[i]) == ranks(flow)) {
      all[i].kv = bytes;
    } else {
      all.push_back({.from = flow.from, .to = flow.to, .kv = bytes});
    }
  }
  std::erase_if(all, [](const Pair& pair) { return pair.from == pair.to; });
  std::ranges::sort(all, std::less{}, [&](const Pair& pair) {
    return std::tuple(-pair.together().count, pair.from, pair.to);
  });
  return all;
}

}  // namespace

report::Panel measured_panel(const DispatchReport& about) {
  using Holds = report::Column::Holds;
  report::Table table{.columns = {{.title = "exchange", .holds = Holds::words},
                                  {.title = "time"},
                                  {.title = "bytes"},
                                  {.title = "bandwidth"}}};
  for (const DispatchReport::Measured& measured : about.measured) {
    const Bytes bytes{measured.bytes};
    const Seconds seconds{measured.seconds};
    table.rows.push_back({measured.name, to_string(seconds), to_string(bytes),
                          measured.seconds > 0 ? to_string(bytes / seconds) : ""});
  }
  return {.title = "Measured" + (about.backend.empty() ? "" : " on " + about.backend),
          .note = "A measurement on this machine, not a prediction for another.",
          .body = to_html(table)};
}

report::Panel ranks_panel(const DispatchReport& about, const Numbers& known) {
  const Load load = load_of(known);
  std::vector<std::int64_t> all = load.sent;
  all.insert(all.end(), load.received.begin(), load.received.end());
  const ByteColumn bytes(all);
  const bool in_millions = known.pairs[known.busiest] >= 1e7;
  report::Table table{
      .columns = {{.title = "rank"},
                  {.title = "tokens at home"},
                  {.title = "queries"},
                  {.title = "keys"},
                  {.title = fmt::format("sent, {}", bytes.unit())},
                  {.title = fmt::format("received, {}", bytes.unit())},
                  {.title = in_millions ? "attention pairs, million" : "attention pairs"},
                  {.title = "of the mean"}}};
  for (int rank = 0; rank < known.ranks; ++rank) {
    const double pairs = known.pairs[rank];
    table.rows.push_back(
        {std::to_string(rank), number(about.routing.home.tokens(rank)),
         number(about.dispatch.attention.cu_seqlens_q(rank).back()),
         number(about.dispatch.attention.cu_seqlens_kv(rank).back()), bytes.cell(load.sent[rank]),
         bytes.cell(load.received[rank]),
         in_millions ? fmt::format("{:.1f}", pairs / 1e6)
                     : with_separators(static_cast<std::int64_t>(pairs)),
         fmt::format("{:.2f}", known.mean_pairs == 0 ? 1 : pairs / known.mean_pairs)});
  }
  return {.title = "Rank by rank",
          .note =
              "Sent and received are queries, keys and values together, one way, without what "
              "stays on its rank.",
          .body = to_html(table)};
}

report::Panel ranges_table_panel(const DispatchReport& about, const Drawn& drawn) {
  report::Table table{.columns = {{.title = "rank"},
                                  {.title = "where", .holds = report::Column::Holds::words},
                                  {.title = "document"},
                                  {.title = "first token"},
                                  {.title = "last token"},
                                  {.title = "tokens"},
                                  {.title = "offset"},
                                  {.title = "keys"},
                                  {.title = "offset of the keys"}}};
  for (const int rank : drawn.ranks) {
    list_ranges(table, "home", rank, ranges_at_home(about, rank));
    list_ranges(table, "attention", rank, ranges_at_attention(about, rank));
    if (table.rows.size() > kMostRangesListed) break;
  }
  std::string note = "The boxes of the picture, in the order of the buffers.";
  if (table.rows.size() > kMostRangesListed) {
    table.rows.resize(kMostRangesListed);
    note += fmt::format(" Only the first {}.", number(kMostRangesListed));
  }
  return {.title = "Range by range",
          .note = note + drawn.limit,
          .body = to_html(table),
          .starts = report::Panel::Starts::folded};
}

report::Panel pairs_panel(const Numbers& known) {
  const std::vector<Pair> sorted = pairs_of(known);
  const std::size_t shown = std::min(sorted.size(), kMostPairsListed);
  report::Table table{.columns = {{.title = "from rank"},
                                  {.title = "to rank"},
                                  {.title = "queries"},
                                  {.title = "keys and values"},
                                  {.title = "together"}}};
  for (const Pair& pair : std::span(sorted).first(shown)) {
    table.rows.push_back({std::to_string(pair.from), std::to_string(pair.to), to_string(pair.q),
                          to_string(pair.kv), to_string(pair.together())});
  }
  return {.title = "The largest pairs of ranks",
          .note = fmt::format("{} of {} that exchange anything.", shown, number(sorted.size())),
          .body = to_html(table),
          .starts = report::Panel::Starts::folded};
}

}  // namespace shiplap::cli::dispatch_page
