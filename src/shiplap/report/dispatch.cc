#include "shiplap/report/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using dispatch::Exchange;
using dispatch::RankPair;
using dispatch::TrialTimes;

std::string ways_table(const DispatchView& view, const dispatch::Summary& known,
                       const TextLook& look) {
  Table table({Column::words("way"), Column::numbers("tokens", 3), Column::numbers("pieces"),
               Column::numbers("between ranks", 4), Column::numbers("across nodes", 4),
               Column::numbers("largest pair", 3), Column::numbers("time", 4).shown_if_any(),
               Column::numbers("bandwidth", 4).shown_if_any()});
  for (std::size_t k = 0; k < known.exchanges.size(); ++k) {
    const Exchange& way = known.exchanges[k];
    const dispatch::TrafficSummary& sum = way.traffic;
    const double crossing = sum.between_ranks == 0 ? 0
                                                   : static_cast<double>(sum.between_nodes) /
                                                         static_cast<double>(sum.between_ranks);
    std::vector<Cell> cells{way.name,
                            with_separators(static_cast<std::int64_t>(sum.tokens)),
                            with_separators(static_cast<std::int64_t>(way.pieces)),
                            way.between_ranks(),
                            fmt::format("{:.0f} %", 100 * crossing),
                            way.bytes(sum.largest.tokens)};
    if (view.trial != nullptr) {
      const TrialTimes& times = view.trial->exchanges[k];
      cells.emplace_back(times.median);
      cells.push_back(times.bytes.count > 0 ? Cell(times.bytes / times.median) : Cell("-"));
    }
    cells.resize(8);
    table.add(std::move(cells));
  }
  return table.text(look);
}

std::string pairs_table(const dispatch::Summary& known, std::int64_t most, const TextLook& look) {
  if (known.pairs.empty()) return "\nnothing leaves its rank\n";
  const std::size_t all = known.pairs.size();
  const std::size_t shown = most == 0 ? all : std::min(all, static_cast<std::size_t>(most));
  Table table({Column::numbers("from"), Column::numbers("to"), Column::numbers("Q tokens"),
               Column::numbers("KV tokens"), Column::numbers("bytes"), Column::words("")});
  for (const RankPair& pair : std::span(known.pairs).first(shown)) {
    table.add({std::to_string(pair.from), std::to_string(pair.to),
               with_separators(static_cast<std::int64_t>(pair.q_tokens)),
               with_separators(static_cast<std::int64_t>(pair.kv_tokens)), pair.together(),
               known.is_across_nodes(pair) ? "another node" : ""});
  }
  std::string text = "\n" + table.text(look);
  if (shown == all) return text;
  return text + fmt::format("and {} pairs more (--pairs 0 shows all)\n",
                            with_separators(static_cast<std::int64_t>(all - shown)));
}

std::string verdict_of(const DispatchView& view, const dispatch::Summary& known) {
  std::string text = fmt::format(
      "\nsound: what is sent arrives, comes back, overwrites nothing, and sees no later token\n"
      "metadata: {} in the sparse form\n",
      to_string(known.tables));
  if (view.trial == nullptr) return text;
  if (!view.trial->is_right()) {
    return text + fmt::format("run on {}: WRONG: {} bytes of queries, {} sums\n", view.backend,
                              view.trial->wrong_bytes, view.trial->wrong_sums);
  }
  return text + fmt::format(
                    "run on {}: queries came back as they were, gradients of all copies "
                    "were summed\n",
                    view.backend);
}

Json exchange_json(const Exchange& way) {
  const dispatch::TrafficSummary& sum = way.traffic;
  return Json::object(
      {{"tokens", static_cast<std::int64_t>(sum.tokens)},
       {"pieces", static_cast<std::int64_t>(way.pieces)},
       {"between_ranks_bytes", way.between_ranks().count},
       {"between_nodes_bytes", way.between_nodes().count},
       {"largest_pair", Json::object({{"from", sum.largest.from},
                                      {"to", sum.largest.to},
                                      {"bytes", way.bytes(sum.largest.tokens).count}})},
       {"most_sent_bytes", way.bytes(sum.most_sent).count},
       {"most_received_bytes", way.bytes(sum.most_received).count}});
}

Json run_json(const DispatchView& view, const dispatch::Summary& known) {
  Json run = Json::object({{"backend", view.backend},
                           {"wrong_bytes", view.trial->wrong_bytes},
                           {"wrong_sums", view.trial->wrong_sums}});
  for (std::size_t k = 0; k < known.exchanges.size(); ++k) {
    const TrialTimes& times = view.trial->exchanges[k];
    run.set(known.exchanges[k].key, Json::object({{"seconds", times.median.value},
                                                  {"least_seconds", times.least.value},
                                                  {"most_seconds", times.most.value},
                                                  {"bytes", times.bytes.count}}));
  }
  return run;
}

}  // namespace

std::string dispatch_text(const DispatchView& view, const TextLook& look, std::int64_t pairs) {
  const dispatch::Summary known = summarize(view.dispatch, view.sizes);
  const std::string documents =
      view.documents > 0 ? counted(view.documents, "document") + ", " : "";
  return fmt::format("{}, {}{} tokens in {}; the heaviest rank has {:.2f} times the mean work\n\n",
                     counted(known.ranks, "rank"), documents,
                     with_separators(static_cast<std::int64_t>(known.tokens)),
                     counted(known.items, "item"), known.imbalance) +
         ways_table(view, known, look) + pairs_table(known, pairs, look) + verdict_of(view, known);
}

Json dispatch_json(const DispatchView& view) {
  const dispatch::Summary known = summarize(view.dispatch, view.sizes);
  Json json = Json::object({{"schema", "shiplap.dispatch.summary/1"},
                            {"ranks", known.ranks},
                            {"documents", view.documents},
                            {"items", known.items},
                            {"tokens", static_cast<std::int64_t>(known.tokens)},
                            {"imbalance", known.imbalance},
                            {"metadata_bytes", known.tables.count},
                            {"sound", true}});
  Json ways = Json::object();
  for (const Exchange& way : known.exchanges) ways.set(way.key, exchange_json(way));
  json.set("exchanges", std::move(ways));
  Json list = Json::array();
  for (const RankPair& pair : known.pairs) {
    list.push(Json::object({{"from", pair.from},
                            {"to", pair.to},
                            {"q_tokens", static_cast<std::int64_t>(pair.q_tokens)},
                            {"kv_tokens", static_cast<std::int64_t>(pair.kv_tokens)},
                            {"bytes", pair.together().count}}));
  }
  json.set("pairs", std::move(list));
  if (view.trial != nullptr) json.set("run", run_json(view, known));
  return json;
}

}  // namespace shiplap::report
