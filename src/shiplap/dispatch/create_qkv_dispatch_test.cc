// create_qkv_dispatch and the attention layout: five results that belong together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Numbers = std::vector<std::uint32_t>;

Numbers numbers(std::span<const std::uint32_t> values) { return {values.begin(), values.end()}; }

// Item by item, counting words.
void expect_attention(const AttentionLayout& found, const Layout& attention) {
  ASSERT_EQ(found.world_size(), attention.world_size());
  for (int rank = 0; rank < attention.world_size(); ++rank) {
    Numbers cu_q{0};
    Numbers cu_kv{0};
    std::uint32_t longest_q = 0;
    std::uint32_t longest_kv = 0;
    for (const Segment& item : attention.of(rank)) {
      const auto keys = static_cast<std::uint32_t>(keys_of(item).size());
      cu_q.push_back(cu_q.back() + item.length);
      cu_kv.push_back(cu_kv.back() + keys);
      longest_q = std::max(longest_q, item.length);
      longest_kv = std::max(longest_kv, keys);
    }
    EXPECT_EQ(at(found.num_local_seqs(rank)), attention.of(rank).size());
    EXPECT_EQ(numbers(found.cu_seqlens_q(rank)), cu_q);
    EXPECT_EQ(numbers(found.cu_seqlens_kv(rank)), cu_kv);
    EXPECT_EQ(found.max_seqlen_q(rank), longest_q);
    EXPECT_EQ(found.max_seqlen_kv(rank), longest_kv);
  }
}

RandomDispatch any_dispatch(Random& random) {
  const int num_seqs = static_cast<int>(random.between(1, 5));
  return {.world_size = static_cast<int>(random.between(1, 6)),
          .total_seq_len = static_cast<std::uint32_t>(random.between(num_seqs, 40)),
          .num_seqs = num_seqs,
          .max_cp_degree = static_cast<int>(random.between(1, 6)),
          .seed = random.next()};
}

// ---- What it DOES

TEST(AttentionLayout, CountsQueriesAndKeysOfEveryItem) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    expect_attention(compute_attention_layout(routing), routing.attention);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(AttentionLayout, IsMadeFromLengths) {
  const AttentionLayout layout({{{2, 5}, {0, 0}, {4, 4}}, {}});
  EXPECT_EQ(layout.world_size(), 2);
  EXPECT_EQ(numbers(layout.cu_seqlens_q(0)), (Numbers{0, 2, 2, 6}));
  EXPECT_EQ(numbers(layout.cu_seqlens_kv(0)), (Numbers{0, 5, 5, 9}));
  EXPECT_EQ(layout.max_seqlen_q(0), 4U);
  EXPECT_EQ(layout.max_seqlen_kv(0), 5U);
  EXPECT_EQ(layout.num_local_seqs(1), 0);
  EXPECT_EQ(numbers(layout.cu_seqlens_q(1)), (Numbers{0}));
  EXPECT_EQ(layout.max_seqlen_kv(1), 0U);
  EXPECT_EQ(AttentionLayout().world_size(), 0);
}

TEST(AttentionLayout, RefusesSumsThatDoNotFit) {
  const auto rejected = [](std::vector<AttentionLayout::Item> items) {
    return thrown_codes([&] { (void)AttentionLayout({items}); });
  };
  EXPECT_EQ(rejected({{kMax32, 0}, {1, 0}}), Codes{"D410"});
  EXPECT_EQ(rejected({{0, kMax32}, {0, 1}}), Codes{"D410"});
  EXPECT_NO_THROW((void)AttentionLayout({{{kMax32 - 1, kMax32 - 1}, {1, 1}}}));
}

TEST(CreateQkvDispatch, GivesFiveResultsOfOneRouting) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const RandomDispatch wanted = any_dispatch(random);
    const Routing routing = random_routing(wanted);
    const QkvDispatch dispatch = create_qkv_dispatch(wanted);
    ASSERT_EQ(dispatch.world_size(), wanted.world_size) << "seed " << seed;
    ASSERT_EQ(dispatch.q, compute_metadata(routing)) << "seed " << seed;
    ASSERT_EQ(dispatch.kv, compute_metadata_kv(routing)) << "seed " << seed;
    ASSERT_EQ(dispatch.attention, compute_attention_layout(routing)) << "seed " << seed;
    ASSERT_EQ(dispatch, compute_qkv_dispatch(routing)) << "seed " << seed;
    expect_attention(dispatch.attention, routing.attention);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(CreateQkvDispatch, GivesEveryRankItsTokensInWholeDocuments) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const RandomDispatch wanted = any_dispatch(random);
    const Routing routing = random_routing(wanted);
    ASSERT_TRUE(validate(routing).empty()) << "seed " << seed;
    std::set<std::int32_t> documents;
    for (int rank = 0; rank < wanted.world_size; ++rank) {
      ASSERT_EQ(routing.home.of(rank).size(), at(wanted.num_seqs)) << "seed " << seed;
      ASSERT_EQ(routing.home.tokens(rank), wanted.total_seq_len) << "seed " << seed;
      for (const Segment& document : routing.home.of(rank)) {
        ASSERT_EQ(document.begin, 0U);
        ASSERT_TRUE(documents.insert(document.document).second) << "seed " << seed;
      }
    }
  }
}

TEST(CreateQkvDispatch, CutsEveryDocumentIntoOneToMaxCpDegreeItems) {
  std::set<int> degrees;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Routing routing = random_routing(
        {.world_size = 3, .total_seq_len = 60, .num_seqs = 2, .max_cp_degree = 4, .seed = seed});
    std::map<std::int32_t, int> items;
    for (const Segment& item : routing.attention.all()) ++items[item.document];
    for (const auto& [document, count] : items) degrees.insert(count);
  }
  EXPECT_EQ(degrees, (std::set<int>{1, 2, 3, 4}));
}

TEST(CreateQkvDispatch, GivesTheSameForTheSameSeed) {
  RandomDispatch wanted{
      .world_size = 4, .total_seq_len = 512, .num_seqs = 4, .max_cp_degree = 4, .seed = 9};
  const QkvDispatch first = create_qkv_dispatch(wanted);
  EXPECT_EQ(first, create_qkv_dispatch(wanted));
  wanted.seed = 10;
  EXPECT_NE(first, create_qkv_dispatch(wanted));
}

TEST(CreateQkvDispatch, ConservesTokens) {
  const QkvDispatch dispatch = create_qkv_dispatch(
      {.world_size = 5, .total_seq_len = 100, .num_seqs = 3, .max_cp_degree = 3, .seed = 1});
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(dispatch.q.forward.num_send_tokens(rank), 100U);
    EXPECT_EQ(dispatch.q.reverse.num_total_recv_tokens(rank), 100U);
    EXPECT_EQ(dispatch.q.forward.num_total_recv_tokens(rank),
              dispatch.q.reverse.num_send_tokens(rank));
    EXPECT_EQ(dispatch.kv.forward.num_total_recv_tokens(rank),
              dispatch.kv.reverse.num_send_tokens(rank));
    sent += dispatch.q.forward.num_send_tokens(rank);
    received += dispatch.q.forward.num_total_recv_tokens(rank);
  }
  EXPECT_EQ(sent, received);
}

TEST(CreateQkvDispatch, RefusesWhatIsImpossible) {
  const auto rejected = [](const RandomDispatch& wanted) {
    return thrown_codes([&] { (void)create_qkv_dispatch(wanted); });
  };
  EXPECT_EQ(rejected({.world_size = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.total_seq_len = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.total_seq_len = 2, .num_seqs = 3}), Codes{"D400"});
  EXPECT_EQ(rejected({.num_seqs = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.max_cp_degree = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.max_cp_degree = -1}), Codes{"D400"});
}

// ---- What it does NOT do

TEST(CreateQkvDispatch, DoesNotBalanceQueriesOrKeys) {
  const QkvDispatch dispatch = create_qkv_dispatch(
      {.world_size = 8, .total_seq_len = 4096, .num_seqs = 4, .max_cp_degree = 4, .seed = 0});
  std::vector<std::uint64_t> queries;
  std::vector<std::uint64_t> keys;
  for (int rank = 0; rank < 8; ++rank) {
    queries.push_back(dispatch.q.forward.num_total_recv_tokens(rank));
    keys.push_back(dispatch.kv.forward.num_total_recv_tokens(rank));
  }
  EXPECT_GT(*std::ranges::max_element(queries), 2 * *std::ranges::min_element(queries));
  EXPECT_GT(*std::ranges::max_element(keys), 2 * *std::ranges::min_element(keys));
}

TEST(CreateQkvDispatch, DoesNotKeepTokensAtHomeWhereItCould) {
  // One document per rank, whole: none would have to move.
  const QkvDispatch dispatch =
      create_qkv_dispatch({.world_size = 8, .total_seq_len = 10, .seed = 3});
  int moved = 0;
  for (int rank = 0; rank < 8; ++rank) {
    if (dispatch.q.forward.row(rank, 0).copies[0].rank != rank) ++moved;
  }
  EXPECT_GT(moved, 0);
}

TEST(CreateQkvDispatch, DoesNotGiveEveryRankAnItem) {
  int idle = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const QkvDispatch dispatch =
        create_qkv_dispatch({.world_size = 8, .total_seq_len = 10, .seed = seed});
    for (int rank = 0; rank < 8; ++rank) {
      if (dispatch.attention.num_local_seqs(rank) == 0) ++idle;
    }
  }
  EXPECT_GT(idle, 0);
}

// The pairs of one item, counted one by one: query t of q sees all keys but the q - 1 - t last.
TEST(AttentionPairs, AreThoseThatTheMaskLeaves) {
  for (std::uint32_t queries = 0; queries < 6; ++queries) {
    for (std::uint32_t keys = queries; keys < 9; ++keys) {
      int counted = 0;
      for (std::uint32_t t = 0; t < queries; ++t) {
        for (std::uint32_t k = 0; k < keys; ++k) counted += k + queries <= keys + t ? 1 : 0;
      }
      const AttentionLayout layout({{{queries, keys}, {1, 1}}});
      EXPECT_EQ(attention_pairs(layout, 0), counted + 1) << queries << " of " << keys;
    }
  }
}

}  // namespace
}  // namespace shiplap::dispatch
