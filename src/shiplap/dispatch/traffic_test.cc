// flows and summarize, counted token by token.
#include "shiplap/dispatch/traffic.h"

#include <gtest/gtest.h>

#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

std::vector<Flow> expected_flows(const Metadata& metadata) {
  std::map<std::pair<int, int>, Flow> flows;
  const Rows rows = rows_of(metadata);
  for (std::size_t from = 0; from < rows.size(); ++from) {
    for (const Sent& row : rows[from]) {
      for (const Copy& copy : row.copies) {
        if (row.length == 0 || copy.rank < 0) continue;
        Flow& flow = flows[{static_cast<int>(from), copy.rank}];
        flow.from = static_cast<std::int32_t>(from);
        flow.to = copy.rank;
        ++flow.pieces;
      }
    }
  }
  for (const auto& [to, from] : sources(metadata)) {
    for (const Spot& spot : from) ++flows[{spot.rank, to.rank}].tokens;
  }
  std::vector<Flow> all;
  for (const auto& [pair, flow] : flows) all.push_back(flow);
  return all;
}

// ---- What they DO

TEST(Flows, CountTokensAndPiecesBySenderThenReceiver) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    const MetadataPair q = compute_metadata(routing);
    const MetadataPair kv = compute_metadata_kv(routing);
    for (const Metadata* metadata : {&q.forward, &q.reverse, &kv.forward, &kv.reverse}) {
      ASSERT_EQ(flows(*metadata), expected_flows(*metadata)) << "seed " << seed;
    }
  }
}

TEST(Flows, HaveWhatStaysToo) {
  EXPECT_EQ(flows(build({{{3, {{0, 0}}}, {2, {{1, 0}}}, {1, {{0, 3}}}}, {}})),
            (std::vector<Flow>{{0, 0, 4, 2}, {0, 1, 2, 1}}));
}

TEST(Summarize, CountsWhatLeavesRanksAndNodes) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const Metadata forward = compute_metadata_kv(any_routing(random, {.ranks = 7})).forward;
    const int ranks_per_node = static_cast<int>(random.between(1, 5));
    std::uint64_t tokens = 0;
    std::uint64_t between_ranks = 0;
    std::uint64_t between_nodes = 0;
    std::vector<std::uint64_t> sent(at(forward.world_size()));
    std::vector<std::uint64_t> received(at(forward.world_size()));
    for (const auto& [to, from] : sources(forward)) {
      ++tokens;
      const int sender = from[0].rank;
      if (sender == to.rank) continue;
      ++between_ranks;
      ++sent[sender];
      ++received[to.rank];
      if (sender / ranks_per_node != to.rank / ranks_per_node) ++between_nodes;
    }
    const TrafficSummary summary = summarize(flows(forward), ranks_per_node);
    ASSERT_EQ(summary.tokens, tokens) << "seed " << seed;
    ASSERT_EQ(summary.between_ranks, between_ranks) << "seed " << seed;
    ASSERT_EQ(summary.between_nodes, between_nodes) << "seed " << seed;
    ASSERT_EQ(summary.max_sent, *std::ranges::max_element(sent)) << "seed " << seed;
    ASSERT_EQ(summary.max_received, *std::ranges::max_element(received)) << "seed " << seed;
  }
}

TEST(Summarize, FindsTheLargestFlowBetweenTwoRanks) {
  const std::vector<Flow> all{{0, 0, 100, 1}, {0, 1, 5, 1}, {1, 0, 9, 2}, {2, 0, 9, 1}};
  EXPECT_EQ(summarize(all, 1).largest, (Flow{1, 0, 9, 2}));
  EXPECT_EQ(summarize(all, 1).max_received, 18U);
}

TEST(Summarize, OfNothingIsZero) {
  const TrafficSummary none = summarize({}, 8);
  EXPECT_EQ(none.tokens, 0U);
  EXPECT_EQ(none.largest, Flow{});
  EXPECT_EQ(none.max_sent, 0U);
}

// ---- What they do NOT do

TEST(Flows, DoNotListPairsThatExchangeNothing) {
  EXPECT_TRUE(flows(build({{{0, {{1, 0}}}, {0, {{-1, 0}}}}, {}})).empty());
}

TEST(Flows, DoNotCountRanksThatDoNotExist) {
  EXPECT_TRUE(flows(build({{{3, {{7, 0}}}, {2, {{-1, 0}}}}})).empty());
}

}  // namespace
}  // namespace shiplap::dispatch
