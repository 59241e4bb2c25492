// compute_metadata: the tables of the queries, compared with buffers written out word by word.
#include <gtest/gtest.h>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/dense.h"
#include "shiplap/dispatch/testing_internal.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

// Cuts the segments of `layout` wherever the next word lies in another segment of `other`; an empty
// segment is one row of length 0.
std::vector<std::vector<std::uint32_t>> expected_lengths(const Layout& layout,
                                                         const Layout& other) {
  std::map<Word, std::size_t> owner;
  for (std::size_t i = 0; i < other.all().size(); ++i) {
    const Segment& segment = other.all()[i];
    for (std::uint32_t k = 0; k < segment.length; ++k) {
      owner[{segment.document, segment.begin + k}] = i;
    }
  }
  std::vector<std::vector<std::uint32_t>> lengths(at(layout.world_size()));
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const Segment& segment : layout.of(rank)) {
      if (segment.length == 0) lengths[rank].push_back(0);
      for (std::uint32_t k = 0; k < segment.length; ++k) {
        const Word word{segment.document, segment.begin + k};
        const Word before{segment.document, segment.begin + k - 1};
        if (k == 0 || owner.at(word) != owner.at(before)) lengths[rank].push_back(0);
        ++lengths[rank].back();
      }
    }
  }
  return lengths;
}

// Every token of `from` goes to the offset of its word in `to`.
void expect_moves(const Metadata& metadata, const Layout& from, const Layout& to) {
  const Text sent = words_of(from);
  const auto spots = spots_of(words_of(to));
  const auto found = destinations(metadata);
  ASSERT_EQ(found.size(), sent.size());
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    ASSERT_EQ(found[rank].size(), sent[rank].size());
    for (std::size_t i = 0; i < sent[rank].size(); ++i) {
      ASSERT_EQ(found[rank][i], spots.at(sent[rank][i])) << "rank " << rank << ", token " << i;
    }
  }
}

void expect_rows_exist(const Metadata& metadata) {
  for (const auto& rank : rows_of(metadata)) {
    for (const Sent& row : rank) {
      ASSERT_EQ(row.copies.size(), 1U);
      ASSERT_GE(row.copies[0].rank, 0);
      ASSERT_LT(row.copies[0].rank, metadata.world_size());
    }
  }
}

void expect_right(const Routing& routing) {
  const MetadataPair pair = compute_metadata(routing);
  EXPECT_EQ(pair.forward.max_cp(), 0);
  EXPECT_EQ(pair.reverse.max_cp(), 0);
  EXPECT_EQ(pair.forward.arrival(), ArrivalMode::placed);
  EXPECT_EQ(pair.reverse.arrival(), ArrivalMode::placed);
  ASSERT_NO_FATAL_FAILURE(expect_moves(pair.forward, routing.home, routing.attention));
  ASSERT_NO_FATAL_FAILURE(expect_moves(pair.reverse, routing.attention, routing.home));
  ASSERT_NO_FATAL_FAILURE(expect_rows_exist(pair.forward));
  ASSERT_NO_FATAL_FAILURE(expect_rows_exist(pair.reverse));
  ASSERT_EQ(lengths_of(pair.forward), expected_lengths(routing.home, routing.attention));
  ASSERT_EQ(lengths_of(pair.reverse), expected_lengths(routing.attention, routing.home));
}

using ByRank = std::vector<std::vector<Segment>>;

Routing routing(const ByRank& home, const ByRank& attention) {
  return {.home = Layout(home), .attention = Layout(attention)};
}

// ---- What it DOES

TEST(ComputeMetadata, SendsEveryTokenToItsItemAndBackForRandomRoutings) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    expect_right(any_routing(random));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadata, SendsLongDocumentsOverManyRanksToo) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    expect_right(any_routing(random, {.ranks = 17, .documents = 20, .longest = 101}));
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(ComputeMetadata, CutsAHomeSegmentIntoOneRowPerItemThatItMeets) {
  const MetadataPair pair =
      compute_metadata(routing({{{0, 0, 5}}, {}}, {{{0, 3, 2}}, {{0, 0, 1}, {0, 1, 2}}}));
  EXPECT_EQ(rows_of(pair.forward), (Rows{{{1, {{1, 0}}}, {2, {{1, 1}}}, {2, {{0, 0}}}}, {}}));
  EXPECT_EQ(rows_of(pair.reverse), (Rows{{{2, {{0, 3}}}}, {{1, {{0, 0}}}, {2, {{0, 1}}}}}));
}

TEST(ComputeMetadata, KeepsThePlaceOfPlaceholders) {
  const Routing placeholders =
      routing({{{4, 0, 0}, {1, 0, 2}, {4, 0, 0}}, {}}, {{{1, 2, 0}}, {{4, 0, 0}, {1, 0, 2}}});
  expect_right(placeholders);
  EXPECT_EQ(lengths_of(compute_metadata(placeholders).forward),
            (std::vector<std::vector<std::uint32_t>>{{0, 2, 0}, {}}));
}

TEST(ComputeMetadata, GivesEmptyTablesForRanksWithoutTokens) {
  const MetadataPair pair = compute_metadata(routing({{}, {}, {}}, {{}, {}, {}}));
  EXPECT_EQ(pair.forward.world_size(), 3);
  EXPECT_EQ(pair.forward.rows(), 0U);
  EXPECT_EQ(pair.reverse.rows(), 0U);
}

TEST(ComputeMetadata, RefusesARoutingThatIsNotSound) {
  const auto rejected = [](const ByRank& home, const ByRank& attention) {
    return thrown_codes([&] { (void)compute_metadata(routing(home, attention)); });
  };
  const ByRank whole{{{0, 0, 4}}, {}};
  // A token twice, and another one so that the number is right.
  EXPECT_EQ(rejected({{{0, 0, 3}, {0, 2, 1}}, {}}, whole), (Codes{"D401", "D405"}));
  EXPECT_EQ(rejected(whole, {{{0, 0, 4}}, {{0, 1, 1}}}), Codes{"D405"});
  EXPECT_EQ(rejected({{{0, 0, 1}}, {{0, 2, 2}}}, whole), Codes{"D408"});
  EXPECT_EQ(rejected(whole, {{{0, 1, 3}}, {}}), Codes{"D408"});
  EXPECT_EQ(rejected(whole, {{{0, 0, 3}}, {}}), Codes{"D401"});
  EXPECT_EQ(rejected(whole, {{{1, 0, 4}}, {}}), Codes{"D401"});
  EXPECT_EQ(rejected(whole, {{{0, 0, 4}}}), Codes{"D401"});
  EXPECT_EQ(rejected({{{-1, 0, 4}}}, {{{-1, 0, 4}}}), Codes{"D401"});
  const ByRank half{{{0, 0, kMax32}}, {{1, 0, 1}}};
  EXPECT_EQ(rejected(half, {{{0, 0, kMax32}, {1, 0, 1}}, {}}), Codes{"D410"});
  EXPECT_EQ(rejected({{{0, kMax32, 1}, {0, 0, kMax32}}}, {{{0, 0, kMax32}, {0, kMax32, 1}}}),
            Codes{"D410"});
}

TEST(ComputeMetadata, AcceptsAsManyTokensAsThirtyTwoBitsCount) {
  const ByRank most{{{0, 0, kMax32}}};
  const MetadataPair pair = compute_metadata(routing(most, most));
  EXPECT_EQ(pair.forward.num_send_tokens(0), kMax32);
  EXPECT_EQ(pair.reverse.num_total_recv_tokens(0), kMax32);
}

// ---- What it does NOT do

TEST(ComputeMetadata, DoesNotMergeRowsThatHappenToLieTogether) {
  // Two documents side by side on both sides could travel as one row.
  const ByRank both{{{0, 0, 2}, {1, 0, 2}}};
  EXPECT_EQ(lengths_of(compute_metadata(routing(both, both)).forward).front(),
            (std::vector<std::uint32_t>{2, 2}));
}

TEST(ComputeMetadata, DoesNotAskWhetherTheDecisionIsGood) {
  // All to one rank, which is far from balanced.
  expect_right(routing({{{0, 0, 3}}, {{1, 0, 3}}, {{2, 0, 3}}},
                       {{}, {{2, 0, 3}, {0, 0, 3}, {1, 0, 3}}, {}}));
}

// ---- whole sequences: What it DOES

// What comes from lower ranks lies first, then by sequence.
Rows expected_rows(const SequenceDispatch& dispatch) {
  std::vector<std::uint32_t> filled(dispatch.seq_lens.size());
  Rows rows(dispatch.seq_lens.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    for (std::size_t s = 0; s < dispatch.seq_lens[rank].size(); ++s) {
      const std::int32_t to = dispatch.dst_rank[rank][s];
      const std::uint32_t offset = to < 0 ? 0 : filled[to];
      if (to >= 0) filled[to] += dispatch.seq_lens[rank][s];
      rows[rank].push_back({dispatch.seq_lens[rank][s], {{to, offset}}});
    }
  }
  return rows;
}

SequenceDispatch any_sequences(Random& random) {
  const std::int64_t ranks = random.between(1, 6);
  SequenceDispatch dispatch;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    dispatch.seq_lens.emplace_back();
    dispatch.dst_rank.emplace_back();
    const std::int64_t sequences = random.between(0, 6);
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t to = random.between(-1, ranks);
      dispatch.dst_rank.back().push_back(static_cast<std::int32_t>(to));
      dispatch.seq_lens.back().push_back(to < 0 ? 0
                                                : static_cast<std::uint32_t>(random.between(0, 8)));
    }
  }
  return dispatch;
}

TEST(ComputeMetadataOfSequences, PutsThemByRankThenBySequence) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const SequenceDispatch dispatch = any_sequences(random);
    EXPECT_TRUE(validate(dispatch).empty());
    const MetadataPair pair = compute_metadata(dispatch);
    ASSERT_EQ(rows_of(pair.forward), expected_rows(dispatch)) << "seed " << seed;
    const auto back = destinations(pair.reverse);
    const auto arrived = sources(pair.forward);
    std::size_t tokens = 0;
    for (std::size_t rank = 0; rank < back.size(); ++rank) {
      for (std::size_t i = 0; i < back[rank].size(); ++i, ++tokens) {
        ASSERT_EQ(back[rank][i], arrived.at({static_cast<std::int32_t>(rank), i}))
            << "seed " << seed;
      }
    }
    ASSERT_EQ(tokens, arrived.size()) << "seed " << seed;
  }
}

TEST(ComputeMetadataOfSequences, KeepsPaddingAsRowsThatGoNowhere) {
  const MetadataPair pair = compute_metadata(
      SequenceDispatch{.seq_lens = {{3, 0, 2}, {0}}, .dst_rank = {{1, -1, 0}, {-1}}});
  EXPECT_EQ(rows_of(pair.forward),
            (Rows{{{3, {{1, 0}}}, {0, {{-1, 0}}}, {2, {{0, 0}}}}, {{0, {{-1, 0}}}}}));
  EXPECT_EQ(rows_of(pair.reverse), (Rows{{{2, {{0, 3}}}}, {{3, {{0, 0}}}}}));
}

TEST(ComputeMetadataOfSequences, LetsASequenceOfLengthZeroHaveARank) {
  const MetadataPair pair =
      compute_metadata(SequenceDispatch{.seq_lens = {{2, 0}, {1}}, .dst_rank = {{1, 1}, {1}}});
  EXPECT_EQ(rows_of(pair.forward), (Rows{{{2, {{1, 0}}}, {0, {{1, 2}}}}, {{1, {{1, 2}}}}}));
  EXPECT_EQ(lengths_of(pair.reverse)[1], (std::vector<std::uint32_t>{2, 0, 1}));
}

TEST(ComputeMetadataOfSequences, RefusesShapesPaddingWithLengthAndUnknownRanks) {
  const auto rejected = [](const SequenceDispatch& dispatch) {
    EXPECT_EQ(codes(validate(dispatch)), thrown_codes([&] { (void)compute_metadata(dispatch); }));
    return codes(validate(dispatch));
  };
  EXPECT_EQ(rejected({}), Codes{"D401"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {}}), Codes{"D401"});
  EXPECT_EQ(rejected({.seq_lens = {{1}, {}}, .dst_rank = {{0}}}), Codes{"D401"});
  EXPECT_EQ(rejected({.seq_lens = {{1, 2}}, .dst_rank = {{0}}}), Codes{"D401"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{-1}}}), Codes{"D402"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{1}}}), Codes{"D403"});
  EXPECT_EQ(rejected({.seq_lens = {{0}}, .dst_rank = {{-2}}}), Codes{"D403"});
}

TEST(ComputeMetadataOfSequences, SaysWhichSequenceOfWhichRankIsWrong) {
  const auto found =
      validate(SequenceDispatch{.seq_lens = {{1}, {1, 1}}, .dst_rank = {{0}, {0, 2}}});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].where.rank, 1);
  EXPECT_EQ(found[0].where.operation, "dst_rank, sequence 1");
}

// ---- whole sequences with copies

CopyDispatch any_copies(Random& random) {
  const SequenceDispatch sequences = any_sequences(random);
  const auto ranks = static_cast<std::int64_t>(sequences.seq_lens.size());
  CopyDispatch dispatch{.seq_lens = sequences.seq_lens};
  for (const auto& rank : sequences.dst_rank) {
    dispatch.dst_rank.emplace_back();
    for (const std::int32_t first : rank) {
      auto& copies = dispatch.dst_rank.back().emplace_back(1, first);
      const std::int64_t more = random.between(0, 3);
      for (std::int64_t c = 0; c < more; ++c) {
        copies.push_back(static_cast<std::int32_t>(random.between(-1, ranks)));
      }
    }
  }
  return dispatch;
}

TEST(ComputeMetadataOfCopies, PutsThemByRankThenBySequenceThenByCopy) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const CopyDispatch dispatch = any_copies(random);
    const MetadataPair pair = compute_metadata(dispatch);
    // Token by token: every copy takes the next place of its rank, and comes back.
    std::vector<std::vector<Spot>> arrived(dispatch.seq_lens.size());
    const auto sent = destinations(pair.forward);
    for (std::size_t rank = 0; rank < arrived.size(); ++rank) {
      std::uint64_t begin = 0;
      for (std::size_t s = 0; s < dispatch.seq_lens[rank].size(); ++s) {
        const std::uint32_t length = dispatch.seq_lens[rank][s];
        std::vector<std::vector<Spot>> expected(length);
        for (const std::int32_t to : dispatch.dst_rank[rank][s]) {
          for (std::uint32_t k = 0; k < length && to >= 0; ++k) {
            expected[k].push_back({to, arrived[to].size()});
            arrived[to].push_back({static_cast<std::int32_t>(rank), begin + k});
          }
        }
        for (std::uint32_t k = 0; k < length; ++k) {
          ASSERT_EQ(sent[rank][begin + k], expected[k]) << "seed " << seed;
        }
        begin += length;
      }
    }
    const auto back = destinations(pair.reverse);
    for (std::size_t rank = 0; rank < arrived.size(); ++rank) {
      ASSERT_EQ(back[rank].size(), arrived[rank].size()) << "seed " << seed;
      for (std::size_t i = 0; i < arrived[rank].size(); ++i) {
        ASSERT_EQ(back[rank][i], std::vector<Spot>{arrived[rank][i]}) << "seed " << seed;
      }
    }
    ASSERT_EQ(pair.reverse.arrival(), ArrivalMode::summed);
    ASSERT_TRUE(validate_keys(pair).empty()) << "seed " << seed;
  }
}

TEST(ComputeMetadataOfCopies, CompletesTheDescriptionsExample) {
  const MetadataPair pair = compute_metadata(
      CopyDispatch{.seq_lens = {{128, 64, 0}, {96, 128, 32}},
                   .dst_rank = {{{1, 0}, {0, -1}, {-1, -1}}, {{0, 1}, {1, 0}, {0, -1}}}});
  const DenseMetadata dense = to_dense(pair.forward);
  EXPECT_EQ(dense.max_cp, 2);
  EXPECT_EQ(dense.dst_rank, (std::vector<std::int64_t>{1, 0, 0, -1, -1, -1, 0, 1, 1, 0, 0, -1}));
  EXPECT_EQ(dense.dst_offset,
            (std::vector<std::int64_t>{0, 0, 128, 0, 0, 0, 192, 128, 224, 288, 416, 0}));
}

TEST(ComputeMetadataOfCopies, RefusesTokensWithoutACopyAndUnknownRanks) {
  const auto rejected = [](const CopyDispatch& dispatch) {
    EXPECT_EQ(codes(validate(dispatch)), thrown_codes([&] { (void)compute_metadata(dispatch); }));
    return codes(validate(dispatch));
  };
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{{-1, -1}}}}), Codes{"D402"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{{}}}}), Codes{"D402"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{{0, 1}}}}), Codes{"D403"});
  EXPECT_EQ(rejected({.seq_lens = {{1}}, .dst_rank = {{}}}), Codes{"D401"});
  EXPECT_TRUE(validate(CopyDispatch{.seq_lens = {{0}}, .dst_rank = {{{-1}}}}).empty());
}

// ---- whole sequences: What it does NOT do

TEST(ComputeMetadataOfSequences, DoesNotReadMinusOneAsRankZero) {
  const MetadataPair pair =
      compute_metadata(SequenceDispatch{.seq_lens = {{0, 1}}, .dst_rank = {{-1, 0}}});
  EXPECT_EQ(pair.forward.row(0, 0).copies[0].rank, -1);
  EXPECT_EQ(pair.reverse.rows(), 1U);
}

TEST(ComputeMetadataOfSequences, DoesNotPutMoreOnARankThanThirtyTwoBitsCount) {
  EXPECT_EQ(thrown_codes([] {
              (void)compute_metadata(
                  SequenceDispatch{.seq_lens = {{kMax32}, {1}}, .dst_rank = {{0}, {0}}});
            }),
            Codes{"D410"});
}

}  // namespace
}  // namespace shiplap::dispatch
