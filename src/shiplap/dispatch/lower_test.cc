#include "shiplap/dispatch/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "shiplap/base/error.h"
#include "shiplap/dispatch/testing_internal.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"

namespace shiplap::dispatch {
namespace {

Routing packed(const std::vector<std::uint32_t>& lengths, int ranks, int cp) {
  const std::vector<int> degrees(lengths.size(), cp);
  return {.home = pack_documents(lengths, ranks),
          .attention = assign_randomly(cut_documents(lengths, degrees), ranks, 1)};
}

// Every message as (from, to, first, into, count).
using Messages = std::multiset<std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t>>;

Messages messages_of(const Metadata& metadata) {
  Messages all;
  for (int from = 0; from < metadata.world_size(); ++from) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(from); ++i) {
      const Metadata::Row row = metadata.row(from, i);
      for (const Copy& copy : row.copies) {
        if (row.length > 0) all.insert({from, copy.rank, row.begin, copy.offset, row.length});
      }
    }
  }
  return all;
}

// The k-th from a to b among the senders meets the k-th among the receivers.
Messages messages_of(const plan::ExchangeTable& table) {
  Messages all;
  for (std::size_t k = 0; k < table.sends().size(); ++k) {
    const plan::TableRow& send = table.sends()[k];
    const auto same = [&](const plan::TableRow& row) {
      return row.rank == send.rank && row.peer == send.peer;
    };
    const auto number = std::count_if(table.sends().begin(),
                                      table.sends().begin() + static_cast<std::ptrdiff_t>(k), same);
    std::int64_t met = 0;
    for (const plan::TableRow& receive : table.receives()) {
      if (receive.rank != send.peer || receive.peer != send.rank || met++ != number) continue;
      EXPECT_EQ(receive.count, send.count);
      all.insert({send.rank, send.peer, send.first, receive.first, send.count});
    }
  }
  return all;
}

TEST(Lower, GivesTheMessagesOfTheTables) {
  const Routing routing = packed({5, 0, 9, 1, 14}, 4, 3);
  const QkvDispatch dispatch = compute_qkv_dispatch(routing);
  const plan::Plan plan = lower(routing, dispatch);
  EXPECT_EQ(messages_of(plan.tables.at(0)), messages_of(dispatch.q.forward));
  EXPECT_EQ(messages_of(plan.tables.at(1)), messages_of(dispatch.kv.forward));
}

TEST(Lower, GivesAPlanThatReadsBackAndExpands) {
  const Routing routing = packed({5, 0, 9, 1, 14}, 4, 3);
  const plan::Plan plan = lower(routing, compute_qkv_dispatch(routing));
  EXPECT_EQ(plan::parse_text(plan::to_text(plan), "again"), plan);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(plan::expand(plan, Rank(rank)).operations.empty());
  }
}

TEST(Lower, LeavesAttentionOutWhereItsMaskWouldBeTooLong) {
  const Routing routing = packed({40000, 40000}, 2, 2);
  const plan::Plan plan = lower(routing, compute_qkv_dispatch(routing));
  EXPECT_EQ(plan.tensors.size(), 2U);
  EXPECT_EQ(plan.tables.size(), 2U);
  EXPECT_FALSE(plan::expand(plan, Rank(1)).operations.empty());
}

TEST(Lower, RefusesADispatchWithoutTokens) {
  const Routing routing = packed({0, 0}, 2, 1);
  EXPECT_EQ(refused_with([&] { (void)lower(routing, compute_qkv_dispatch(routing)); }),
            std::set<std::string>{"D400"});
}

}  // namespace
}  // namespace shiplap::dispatch
