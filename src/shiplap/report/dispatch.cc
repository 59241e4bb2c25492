#include "shiplap/report/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using dispatch::ExchangeSummary;
using dispatch::ExchangeTimes;
using dispatch::RankPair;

std::string exchanges_table(const DispatchView& view, const dispatch::Summary& summary,
                            const TextStyle& style) {
  Table table({Column::text("exchange"), Column::numbers("tokens", 3), Column::numbers("pieces"),
               Column::numbers("between ranks", 4), Column::numbers("across nodes", 4),
               Column::numbers("largest pair", 3), Column::numbers("time", 4).hidden_if_empty(),
               Column::numbers("bandwidth", 4).hidden_if_empty()});
  for (std::size_t k = 0; k < summary.exchanges.size(); ++k) {
    const ExchangeSummary& exchange = summary.exchanges[k];
    const dispatch::TrafficSummary& traffic = exchange.traffic;
    const double crossing = traffic.between_ranks == 0
                                ? 0
                                : static_cast<double>(traffic.between_nodes) /
                                      static_cast<double>(traffic.between_ranks);
    std::vector<Cell> cells{exchange.name,
                            with_separators(static_cast<std::int64_t>(traffic.tokens)),
                            with_separators(static_cast<std::int64_t>(exchange.pieces)),
                            exchange.between_ranks(),
                            fmt::format("{:.0f} %", 100 * crossing),
                            exchange.bytes(traffic.largest.tokens)};
    if (view.benchmark != nullptr) {
      const ExchangeTimes& times = view.benchmark->exchanges[k];
      cells.emplace_back(times.median);
      cells.push_back(times.bytes.count > 0 ? Cell(times.bytes / times.median) : Cell("-"));
    }
    cells.resize(8);
    table.add(std::move(cells));
  }
  return table.text(style);
}

std::string pairs_table(const dispatch::Summary& summary, std::int64_t max_pairs,
                        const TextStyle& style) {
  if (summary.pairs.empty()) return "\nno token leaves its rank\n";
  const std::size_t all = summary.pairs.size();
  const std::size_t shown =
      max_pairs == 0 ? all : std::min(all, static_cast<std::size_t>(max_pairs));
  Table table({Column::numbers("from", 9), Column::numbers("to", 9), Column::numbers("Q tokens", 2),
               Column::numbers("KV tokens", 2), Column::numbers("bytes", 9), Column::text("")});
  for (const RankPair& pair : std::span(summary.pairs).first(shown)) {
    table.add({std::to_string(pair.from), std::to_string(pair.to),
               with_separators(static_cast<std::int64_t>(pair.q_tokens)),
               with_separators(static_cast<std::int64_t>(pair.kv_tokens)), pair.total(),
               summary.is_across_nodes(pair) ? "another node" : ""});
  }
  std::string text = "\n" + table.text(style);
  if (shown == all) return text;
  return text + fmt::format("and {} more pairs (--pairs 0 shows all)\n",
                            with_separators(static_cast<std::int64_t>(all - shown)));
}

std::string verdict_of(const DispatchView& view, const dispatch::Summary& summary) {
  std::string text = fmt::format(
      "\nsound: all tokens arrive and return, no writes overlap, and {}\n"
      "metadata: {} in the sparse format\n",
      summary.mask.is_causal()
          ? "attention is causal"
          : fmt::format("items have the keys of the mask {}", to_string(summary.mask)),
      to_string(summary.tables));
  if (view.benchmark == nullptr) return text;
  if (!view.benchmark->is_right()) {
    return text + fmt::format("run on {}: MISMATCH: {} bytes of queries, {} sums\n", view.backend,
                              view.benchmark->wrong_bytes, view.benchmark->wrong_sums);
  }
  return text + fmt::format(
                    "run on {}: correct; queries returned unchanged, gradients of all copies "
                    "were summed\n",
                    view.backend);
}

Json exchange_json(const ExchangeSummary& exchange) {
  const dispatch::TrafficSummary& traffic = exchange.traffic;
  return Json::object(
      {{"tokens", static_cast<std::int64_t>(traffic.tokens)},
       {"pieces", static_cast<std::int64_t>(exchange.pieces)},
       {"between_ranks_bytes", exchange.between_ranks().count},
       {"between_nodes_bytes", exchange.between_nodes().count},
       {"largest_pair", Json::object({{"from", traffic.largest.from},
                                      {"to", traffic.largest.to},
                                      {"bytes", exchange.bytes(traffic.largest.tokens).count}})},
       {"max_sent_bytes", exchange.bytes(traffic.max_sent).count},
       {"max_received_bytes", exchange.bytes(traffic.max_received).count}});
}

Json run_json(const DispatchView& view, const dispatch::Summary& summary) {
  Json run = Json::object({{"backend", view.backend},
                           {"wrong_bytes", view.benchmark->wrong_bytes},
                           {"wrong_sums", view.benchmark->wrong_sums}});
  for (std::size_t k = 0; k < summary.exchanges.size(); ++k) {
    const ExchangeTimes& times = view.benchmark->exchanges[k];
    run.set(summary.exchanges[k].key, Json::object({{"seconds", times.median.value},
                                                    {"min_seconds", times.min.value},
                                                    {"max_seconds", times.max.value},
                                                    {"bytes", times.bytes.count}}));
  }
  return run;
}

}  // namespace

std::string dispatch_text(const DispatchView& view, const TextStyle& style, std::int64_t pairs) {
  const dispatch::Summary summary = summarize(view.dispatch, view.sizes);
  const std::string documents =
      view.documents > 0 ? counted(view.documents, "document") + ", " : "";
  std::string assumed;
  for (const std::string& sentence : view.assumed) {
    assumed += wrapped(sentence, 0, static_cast<std::size_t>(style.width)) + "\n";
  }
  return fmt::format(
             "{}, {}{} tokens in {}; the heaviest rank has {:.2f} times the mean work\n{}\n",
             counted(summary.ranks, "rank"), documents,
             with_separators(static_cast<std::int64_t>(summary.tokens)),
             counted(summary.items, "item"), summary.imbalance, assumed) +
         exchanges_table(view, summary, style) + pairs_table(summary, pairs, style) +
         verdict_of(view, summary);
}

Json dispatch_json(const DispatchView& view) {
  const dispatch::Summary summary = summarize(view.dispatch, view.sizes);
  Json json = Json::object({{"schema", "shiplap.dispatch.summary/1"},
                            {"ranks", summary.ranks},
                            {"documents", view.documents},
                            {"items", summary.items},
                            {"tokens", static_cast<std::int64_t>(summary.tokens)},
                            {"imbalance", summary.imbalance},
                            {"mask", to_string(summary.mask)},
                            {"shares_keys", view.dispatch.attention.shares_keys()},
                            {"metadata_bytes", summary.tables.count},
                            {"sound", true}});
  Json assumed = Json::array();
  for (const std::string& sentence : view.assumed) assumed.push(sentence);
  json.set("assumed", std::move(assumed));
  Json exchanges = Json::object();
  for (const ExchangeSummary& exchange : summary.exchanges)
    exchanges.set(exchange.key, exchange_json(exchange));
  json.set("exchanges", std::move(exchanges));
  Json list = Json::array();
  for (const RankPair& pair : summary.pairs) {
    list.push(Json::object({{"from", pair.from},
                            {"to", pair.to},
                            {"q_tokens", static_cast<std::int64_t>(pair.q_tokens)},
                            {"kv_tokens", static_cast<std::int64_t>(pair.kv_tokens)},
                            {"bytes", pair.total().count}}));
  }
  json.set("pairs", std::move(list));
  if (view.benchmark != nullptr) json.set("run", run_json(view, summary));
  return json;
}

}  // namespace shiplap::report
