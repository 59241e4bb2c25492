#include "shiplap/dispatch/summary.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace shiplap::dispatch {
namespace {

void add_pairs(Summary& summary) {
  std::map<std::pair<int, int>, RankPair> pairs;
  const auto add = [&](const ExchangeSummary& exchange, std::uint64_t RankPair::* tokens,
                       Bytes RankPair::* bytes) {
    for (const Flow& flow : exchange.flows) {
      if (flow.from == flow.to) continue;
      RankPair& pair = pairs[{flow.from, flow.to}];
      pair.from = flow.from;
      pair.to = flow.to;
      pair.*tokens += flow.tokens;
      pair.*bytes += exchange.bytes(flow.tokens);
    }
  };
  add(summary.q(), &RankPair::q_tokens, &RankPair::q);
  add(summary.kv(), &RankPair::kv_tokens, &RankPair::kv);
  for (const auto& [ranks, pair] : pairs) summary.pairs.push_back(pair);
  std::ranges::stable_sort(summary.pairs, std::ranges::greater(), &RankPair::total);
}

void add_work(Summary& summary, const AttentionLayout& attention) {
  for (int rank = 0; rank < summary.ranks; ++rank) {
    summary.work.push_back(attention_pairs(attention, rank));
    summary.items += attention.num_local_seqs(rank);
  }
  const double sum = std::accumulate(summary.work.begin(), summary.work.end(), 0.0);
  summary.mean_work = sum / summary.ranks;
  const auto most = std::ranges::max_element(summary.work);
  summary.busiest = static_cast<int>(most - summary.work.begin());
  if (sum > 0) summary.imbalance = *most * summary.ranks / sum;
}

}  // namespace

Summary summarize(const QkvDispatch& dispatch, const RowSizes& sizes) {
  const auto exchange = [&](std::string_view name, std::string_view key, const Metadata& table,
                            std::int64_t row_bytes) {
    ExchangeSummary made{
        .name = name, .key = key, .row_bytes = row_bytes, .flows = flows(table), .traffic = {}};
    made.traffic = summarize(made.flows, sizes.ranks_per_node);
    made.pieces = table.copies();
    return made;
  };
  Summary summary{
      .ranks = dispatch.world_size(),
      .ranks_per_node = sizes.ranks_per_node,
      .exchanges = {
          exchange("Q forward", "q_forward", dispatch.q.forward, sizes.q_row_bytes),
          exchange("Q reverse", "q_reverse", dispatch.q.reverse, sizes.q_row_bytes),
          exchange("KV forward", "kv_forward", dispatch.kv.forward, sizes.kv_row_bytes),
          exchange("KV grad reverse", "kv_reverse", dispatch.kv.reverse, sizes.kv_row_bytes)}};
  for (const Metadata* const table :
       {&dispatch.q.forward, &dispatch.q.reverse, &dispatch.kv.forward, &dispatch.kv.reverse}) {
    summary.tables += table->bytes();
  }
  for (int rank = 0; rank < summary.ranks; ++rank) {
    summary.tokens += dispatch.q.forward.num_send_tokens(rank);
  }
  summary.mask = dispatch.attention.mask();
  add_pairs(summary);
  add_work(summary, dispatch.attention);
  return summary;
}

}  // namespace shiplap::dispatch
