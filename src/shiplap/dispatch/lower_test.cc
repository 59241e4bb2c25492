#include "shiplap/dispatch/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>
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

constexpr std::string_view kTwoDocuments = R"(shiplap-plan 1
mesh cp=2
list doc = 0 0 1
list h0 = 0 2
list hn = 2 1
list home_rows = 2 1
list homes = 0 1 2
list hrow = 0 0
list items = 0 2 3
list k0 = 0 2 0
list kn = 2 1 1
list krow = 0 2 0
list kv_rows = 3 1
list q0 = 1 2 0
list q_rows = 2 1
list qn = 1 1 1
list qrow = 0 1 0
tensor Q Query tok 3
tensor KV KeyValue key 3
tensor O AttentionOutput tok 3 sum key 3 mask key<=tok and doc[key]=doc[tok]
tensor dO AttentionGrad tok 3
tensor dQ QueryGrad tok 3 sum key 3 mask key<=tok and doc[key]=doc[tok]
tensor dKV KeyValueGrad key 3 sum tok 3 mask key<=tok and doc[key]=doc[tok]
table q_forward
  message 0 0 1 1 0
  message 0 1 0 1 0
  message 1 0 0 1 1
table kv_forward
  message 0 0 0 1 0
  message 0 0 1 1 1
  message 0 1 0 1 0
  message 1 0 0 1 2
program all on all
  buffer q rows home_rows[cp] row_bytes 8 bf16
  buffer kv rows home_rows[cp] row_bytes 8 bf16
  buffer o rows home_rows[cp] row_bytes 8 bf16
  buffer do rows home_rows[cp] row_bytes 8 bf16
  buffer dq rows home_rows[cp] row_bytes 8 bf16
  buffer dkv rows home_rows[cp] row_bytes 8 f32
  buffer q_ rows q_rows[cp] row_bytes 8 bf16
  buffer kv_ rows kv_rows[cp] row_bytes 8 bf16
  buffer o_ rows q_rows[cp] row_bytes 8 bf16
  buffer do_ rows q_rows[cp] row_bytes 8 bf16
  buffer dq_ rows q_rows[cp] row_bytes 8 bf16
  buffer dkv_ rows kv_rows[cp] row_bytes 8 f32
  repeat i homes[cp+1]-homes[cp]
    let t = homes[cp]+i
    given q[hrow[t] +hn[t]] = Q tok h0[t] +hn[t]
    given kv[hrow[t] +hn[t]] = KV key h0[t] +hn[t]
    goal o[hrow[t] +hn[t]] = O tok h0[t] +hn[t]
    goal dq[hrow[t] +hn[t]] = dQ tok h0[t] +hn[t]
    goal dkv[hrow[t] +hn[t]] = dKV key h0[t] +hn[t]
  end
  exchange q to q_ by q_forward over cp
  exchange kv to kv_ by kv_forward over cp
  repeat i items[cp+1]-items[cp]
    let t = items[cp]+i
    compute attention
      reads  q_[qrow[t] +qn[t]] = Q tok q0[t] +qn[t]
      reads  kv_[krow[t] +kn[t]] = KV key k0[t] +kn[t]
      writes o_[qrow[t] +qn[t]] = O tok q0[t] +qn[t] sum key k0[t] +kn[t]
  end
  exchange o_ to o by q_forward reversed over cp
  repeat i homes[cp+1]-homes[cp]
    let t = homes[cp]+i
    compute other label the rest of the network, forward and backward
      reads  o[hrow[t] +hn[t]] = O tok h0[t] +hn[t]
      writes do[hrow[t] +hn[t]] = dO tok h0[t] +hn[t]
    compute zero
      writes dkv[hrow[t] +hn[t]] = dKV key h0[t] +hn[t] sum none
  end
  exchange do to do_ by q_forward over cp
  repeat i items[cp+1]-items[cp]
    let t = items[cp]+i
    compute attention_backward
      reads  q_[qrow[t] +qn[t]] = Q tok q0[t] +qn[t]
      reads  kv_[krow[t] +kn[t]] = KV key k0[t] +kn[t]
      reads  do_[qrow[t] +qn[t]] = dO tok q0[t] +qn[t]
      writes dq_[qrow[t] +qn[t]] = dQ tok q0[t] +qn[t] sum key k0[t] +kn[t]
      writes dkv_[krow[t] +kn[t]] = dKV key k0[t] +kn[t] sum tok q0[t] +qn[t]
  end
  exchange dq_ to dq by q_forward reversed over cp
  exchange dkv_ to dkv by kv_forward reversed over cp add
)";

TEST(Lower, GivesTheWholeStep) {
  const Routing routing = packed({2, 1}, 2, 2);
  EXPECT_EQ(plan::to_text(lower(routing, compute_qkv_dispatch(routing))), kTwoDocuments);
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
  EXPECT_EQ(plan::parse_text(plan::to_text(plan), "again"), plan);
  EXPECT_EQ(plan.tensors.size(), 2U);
  EXPECT_EQ(plan.tables.size(), 2U);
  EXPECT_FALSE(plan::expand(plan, Rank(1)).operations.empty());
}

TEST(Lower, RefusesADispatchWithoutTokens) {
  const Routing routing = packed({0, 0}, 2, 1);
  EXPECT_EQ(thrown_codes([&] { (void)lower(routing, compute_qkv_dispatch(routing)); }),
            std::set<std::string>{"D400"});
}

// Other masks are lists of the first and the last key of each token.
TEST(Lower, WritesAMaskAsListsOfItsKeys) {
  const Routing routing{.home = Layout({{{0, 0, 4}}, {}}),
                        .attention = Layout({{{0, 0, 2}}, {{0, 2, 2}}})};
  const auto text = [&](const Mask& mask) {
    return plan::to_text(lower(routing, compute_qkv_dispatch(routing, {.mask = mask})));
  };
  EXPECT_THAT(text(Mask::window(2)), testing::HasSubstr("list first_key = 0 0 1 2\n"));
  EXPECT_THAT(text(Mask::window(2)), testing::HasSubstr("list last_key = 0 1 2 3\n"));
  EXPECT_THAT(text(Mask::full()), testing::HasSubstr("list last_key = 3 3 3 3\n"));
  EXPECT_THAT(text(Mask::prefix(3)), testing::HasSubstr("list last_key = 2 2 2 3\n"));
  EXPECT_THAT(text(Mask::causal()), testing::HasSubstr("list doc = 0 0 0 0\n"));
}

}  // namespace
}  // namespace shiplap::dispatch
