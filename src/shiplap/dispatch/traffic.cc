#include "shiplap/dispatch/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"

namespace shiplap::dispatch {
namespace {

// Tokens that one rank sends, by receiver. Reused for all ranks; only touched entries are cleared.
class RowSums {
 public:
  explicit RowSums(int world_size) : sums_(at(world_size)) {}

  void add(int to, std::uint32_t tokens) {
    Flow& flow = sums_[to];
    if (flow.pieces++ == 0) touched_.push_back(to);
    flow.tokens += tokens;
  }

  void move_to(std::vector<Flow>& flows, int from) {
    std::ranges::sort(touched_);
    for (const int to : touched_) {
      Flow flow = sums_[to];
      flow.from = from;
      flow.to = to;
      flows.push_back(flow);
      sums_[to] = {};
    }
    touched_.clear();
  }

 private:
  std::vector<Flow> sums_;
  std::vector<int> touched_;
};

}  // namespace

std::vector<Flow> flows(const Metadata& metadata) {
  std::vector<Flow> all;
  RowSums sums(metadata.world_size());
  for (int from = 0; from < metadata.world_size(); ++from) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(from); ++i) {
      const Metadata::Row row = metadata.row(from, i);
      if (row.length == 0) continue;
      for (const Copy& copy : row.copies) {
        if (copy.rank >= 0 && copy.rank < metadata.world_size()) sums.add(copy.rank, row.length);
      }
    }
    sums.move_to(all, from);
  }
  return all;
}

TrafficSummary summarize(std::span<const Flow> flows, int ranks_per_node) {
  if (ranks_per_node < 1) {
    throw InputError(Diagnostic{.code = "D400",
                                .what = fmt::format("invalid ranks per node: {}", ranks_per_node)});
  }
  TrafficSummary summary;
  std::map<int, std::uint64_t> sent;
  std::map<int, std::uint64_t> received;
  for (const Flow& flow : flows) {
    summary.tokens += flow.tokens;
    if (flow.from == flow.to) continue;
    summary.between_ranks += flow.tokens;
    if (flow.from / ranks_per_node != flow.to / ranks_per_node) {
      summary.between_nodes += flow.tokens;
    }
    if (flow.tokens > summary.largest.tokens) summary.largest = flow;
    sent[flow.from] += flow.tokens;
    received[flow.to] += flow.tokens;
  }
  for (const auto& [rank, tokens] : sent) {
    summary.max_sent = std::max(summary.max_sent, tokens);
  }
  for (const auto& [rank, tokens] : received) {
    summary.max_received = std::max(summary.max_received, tokens);
  }
  return summary;
}

}  // namespace shiplap::dispatch
