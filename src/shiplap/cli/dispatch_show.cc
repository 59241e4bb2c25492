#include "shiplap/cli/dispatch_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "shiplap/cli/table.h"
#include "shiplap/dispatch/traffic.h"

namespace shiplap::cli {
namespace {

using dispatch::Flow;
using dispatch::Metadata;
using dispatch::TrafficSummary;

constexpr std::int64_t kUsualPairs = 10;

// One way of the four.
struct Way {
  const char* name = "";
  const char* key = "";
  const Metadata* table = nullptr;
  std::int64_t row_bytes = 0;
};

std::array<Way, 4> ways_of(const DispatchView& view) {
  return {{{.name = "Q there",
            .key = "q_forward",
            .table = &view.dispatch.q.forward,
            .row_bytes = view.q_row_bytes},
           {.name = "Q back",
            .key = "q_reverse",
            .table = &view.dispatch.q.reverse,
            .row_bytes = view.q_row_bytes},
           {.name = "KV there",
            .key = "kv_forward",
            .table = &view.dispatch.kv.forward,
            .row_bytes = view.kv_row_bytes},
           {.name = "KV gradients back",
            .key = "kv_reverse",
            .table = &view.dispatch.kv.reverse,
            .row_bytes = view.kv_row_bytes}}};
}

std::int64_t bytes(std::uint64_t tokens, std::int64_t row_bytes) {
  return dispatch::bytes_at(tokens, row_bytes).count;
}

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::uint64_t home_tokens(const DispatchView& view) {
  std::uint64_t tokens = 0;
  for (int rank = 0; rank < view.dispatch.world_size(); ++rank) {
    tokens += view.dispatch.q.forward.num_send_tokens(rank);
  }
  return tokens;
}

std::int64_t items(const DispatchView& view) {
  std::int64_t count = 0;
  for (int rank = 0; rank < view.dispatch.world_size(); ++rank) {
    count += view.dispatch.attention.num_local_seqs(rank);
  }
  return count;
}

Bytes table_bytes(const DispatchView& view) {
  Bytes total;
  for (const Way& way : ways_of(view)) total += way.table->bytes();
  return total;
}

// The heaviest rank's work over the mean.
double imbalance(const dispatch::AttentionLayout& layout) {
  double most = 0;
  double sum = 0;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    most = std::max(most, dispatch::causal_pairs(layout, rank));
    sum += dispatch::causal_pairs(layout, rank);
  }
  return sum == 0 ? 1 : most * layout.world_size() / sum;
}

// What goes from one rank to another on the way there, Q and KV together.
struct Pair {
  int from = 0;
  int to = 0;
  std::uint64_t q_tokens = 0;
  std::uint64_t kv_tokens = 0;
  std::int64_t bytes = 0;
};

// Largest first; what stays on a rank is not among them.
std::vector<Pair> pairs_of(const DispatchView& view) {
  std::map<std::pair<int, int>, Pair> pairs;
  const auto add = [&](const Metadata& table, std::int64_t row_bytes,
                       std::uint64_t Pair::* tokens) {
    for (const Flow& flow : dispatch::flows(table)) {
      if (flow.from == flow.to) continue;
      Pair& pair = pairs[{flow.from, flow.to}];
      pair.from = flow.from;
      pair.to = flow.to;
      pair.*tokens += flow.tokens;
      pair.bytes += bytes(flow.tokens, row_bytes);
    }
  };
  add(view.dispatch.q.forward, view.q_row_bytes, &Pair::q_tokens);
  add(view.dispatch.kv.forward, view.kv_row_bytes, &Pair::kv_tokens);
  std::vector<Pair> sorted;
  for (const auto& [ignored, pair] : pairs) sorted.push_back(pair);
  std::ranges::stable_sort(sorted, std::ranges::greater(), &Pair::bytes);
  return sorted;
}

std::string headline(const DispatchView& view) {
  std::string text = counted(view.dispatch.world_size(), "rank") + ", ";
  if (view.documents > 0) text += counted(view.documents, "document") + ", ";
  return text + fmt::format("{} tokens in {}; the heaviest rank has {:.2f} times the mean work\n",
                            with_separators(static_cast<std::int64_t>(home_tokens(view))),
                            counted(items(view), "item"), imbalance(view.dispatch.attention));
}

std::string ways_table(const DispatchView& view, const Context& context) {
  Table table({{.title = "way"},
               {.title = "tokens", .align = Align::right, .worth = 3},
               {.title = "pieces", .align = Align::right, .worth = 1},
               {.title = "between ranks", .align = Align::right, .worth = 4},
               {.title = "across nodes", .align = Align::right, .worth = 4},
               {.title = "largest pair", .align = Align::right, .worth = 3},
               {.title = "time", .align = Align::right, .worth = 4, .optional = true},
               {.title = "bandwidth", .align = Align::right, .worth = 4, .optional = true}});
  for (std::size_t k = 0; k < 4; ++k) {
    const Way way = ways_of(view)[k];
    const auto flows = dispatch::flows(*way.table);
    const TrafficSummary sum = dispatch::summarize(flows, view.ranks_per_node);
    std::vector<std::string> cells{
        way.name,
        with_separators(static_cast<std::int64_t>(sum.tokens)),
        with_separators(static_cast<std::int64_t>(way.table->copies())),
        to_string(dispatch::bytes_at(sum.between_ranks, way.row_bytes)),
        fmt::format("{:.0f} %", 100 * share(sum.between_nodes, sum.between_ranks)),
        to_string(dispatch::bytes_at(sum.largest.tokens, way.row_bytes))};
    if (view.trial != nullptr) {
      const run::TrialTimes& times = view.trial->exchanges[k];
      cells.push_back(to_string(times.median));
      cells.push_back(times.bytes.count > 0 ? to_string(times.bytes / times.median) : "-");
    } else {
      cells.resize(8);
    }
    table.add(std::move(cells));
  }
  return table.text(context.width(), context.out.colour);
}

std::string pairs_table(const DispatchView& view, const Context& context) {
  const std::vector<Pair> pairs = pairs_of(view);
  const std::int64_t most = view.pairs.value_or(kUsualPairs);
  const std::size_t shown =
      most == 0 ? pairs.size() : std::min(pairs.size(), static_cast<std::size_t>(most));
  if (pairs.empty()) return "\nnothing leaves its rank\n";
  Table table({{.title = "from", .align = Align::right},
               {.title = "to", .align = Align::right},
               {.title = "Q tokens", .align = Align::right},
               {.title = "KV tokens", .align = Align::right},
               {.title = "bytes", .align = Align::right},
               {.title = "", .align = Align::left}});
  for (std::size_t k = 0; k < shown; ++k) {
    const Pair& pair = pairs[k];
    const bool crosses = pair.from / view.ranks_per_node != pair.to / view.ranks_per_node;
    table.add({std::to_string(pair.from), std::to_string(pair.to),
               with_separators(static_cast<std::int64_t>(pair.q_tokens)),
               with_separators(static_cast<std::int64_t>(pair.kv_tokens)),
               to_string(Bytes{pair.bytes}), crosses ? "another node" : ""});
  }
  std::string text = "\n" + table.text(context.width(), context.out.colour);
  if (shown < pairs.size()) {
    text += fmt::format("and {} pairs more (--pairs 0 shows all)\n",
                        with_separators(static_cast<std::int64_t>(pairs.size() - shown)));
  }
  return text;
}

std::string verdict(const DispatchView& view) {
  std::string text = fmt::format(
      "\nsound: what is sent arrives, comes back, overwrites nothing, and sees no later token\n"
      "metadata: {} in the sparse form\n",
      to_string(table_bytes(view)));
  if (view.trial == nullptr) return text;
  const bool right = view.trial->wrong_bytes == 0 && view.trial->wrong_sums == 0;
  return text + (right
                     ? fmt::format("run on {}: queries came back as they were, gradients of all "
                                   "copies were summed\n",
                                   view.backend)
                     : fmt::format("run on {}: WRONG: {} bytes of queries, {} sums\n", view.backend,
                                   view.trial->wrong_bytes, view.trial->wrong_sums));
}

Json summary_json(const Way& way, int ranks_per_node) {
  const auto flows = dispatch::flows(*way.table);
  const TrafficSummary sum = dispatch::summarize(flows, ranks_per_node);
  return Json::object(
      {{"tokens", static_cast<std::int64_t>(sum.tokens)},
       {"pieces", static_cast<std::int64_t>(way.table->copies())},
       {"between_ranks_bytes", bytes(sum.between_ranks, way.row_bytes)},
       {"between_nodes_bytes", bytes(sum.between_nodes, way.row_bytes)},
       {"largest_pair", Json::object({{"from", sum.largest.from},
                                      {"to", sum.largest.to},
                                      {"bytes", bytes(sum.largest.tokens, way.row_bytes)}})},
       {"most_sent_bytes", bytes(sum.most_sent, way.row_bytes)},
       {"most_received_bytes", bytes(sum.most_received, way.row_bytes)}});
}

}  // namespace

std::string show_dispatch(const DispatchView& view, const Context& context) {
  return headline(view) + "\n" + ways_table(view, context) + pairs_table(view, context) +
         verdict(view);
}

Json dispatch_to_json(const DispatchView& view) {
  Json json = Json::object({{"schema", "shiplap.dispatch.summary/1"},
                            {"ranks", view.dispatch.world_size()},
                            {"documents", view.documents},
                            {"items", items(view)},
                            {"tokens", static_cast<std::int64_t>(home_tokens(view))},
                            {"imbalance", imbalance(view.dispatch.attention)},
                            {"metadata_bytes", table_bytes(view).count},
                            {"sound", true}});
  Json ways = Json::object();
  for (const Way& way : ways_of(view)) ways.set(way.key, summary_json(way, view.ranks_per_node));
  json.set("exchanges", std::move(ways));
  Json list = Json::array();
  for (const Pair& pair : pairs_of(view)) {
    list.push(Json::object({{"from", pair.from},
                            {"to", pair.to},
                            {"q_tokens", static_cast<std::int64_t>(pair.q_tokens)},
                            {"kv_tokens", static_cast<std::int64_t>(pair.kv_tokens)},
                            {"bytes", pair.bytes}}));
  }
  json.set("pairs", std::move(list));
  if (view.trial == nullptr) return json;
  Json run = Json::object({{"backend", view.backend},
                           {"wrong_bytes", view.trial->wrong_bytes},
                           {"wrong_sums", view.trial->wrong_sums}});
  for (std::size_t k = 0; k < 4; ++k) {
    const run::TrialTimes& times = view.trial->exchanges[k];
    run.set(ways_of(view)[k].key, Json::object({{"seconds", times.median.value},
                                                {"least_seconds", times.least.value},
                                                {"most_seconds", times.most.value},
                                                {"bytes", times.bytes.count}}));
  }
  return json.set("run", std::move(run));
}

}  // namespace shiplap::cli
