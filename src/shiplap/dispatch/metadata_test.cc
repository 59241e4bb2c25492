// Metadata, its builder and its hashes.
#include "shiplap/dispatch/metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Totals = std::vector<std::uint64_t>;

// Token by token: what `rank` receives from each, and in all.
Totals expected_totals(const Metadata& metadata, int rank) {
  Totals totals(at(metadata.world_size()) + 1);
  const auto sent = destinations(metadata);
  for (std::size_t from = 0; from < sent.size(); ++from) {
    for (const auto& token : sent[from]) {
      for (const Spot& to : token) {
        if (to.rank != rank) continue;
        ++totals[from];
        ++totals.back();
      }
    }
  }
  return totals;
}

// The fields whose hashes differ.
std::set<std::string> differing(const Metadata& a, const Metadata& b) {
  std::set<std::string> fields;
  for (std::size_t i = 0; i < Metadata::kHashedFields.size(); ++i) {
    if (a.hashes()[i] != b.hashes()[i]) fields.emplace(Metadata::kHashedFields[i]);
  }
  return fields;
}

// ---- What it DOES

TEST(Metadata, HoldsTheRowsThatItWasGiven) {
  const Rows rows{{{3, {{1, 5}}}, {0, {{-1, 0}}}}, {}, {{2, {{0, 7}}}}};
  const Metadata metadata = build(rows);
  EXPECT_EQ(rows_of(metadata), rows);
  EXPECT_EQ(metadata.world_size(), 3);
  EXPECT_EQ(metadata.max_cp(), 0);
  EXPECT_EQ(metadata.num_seqs(0), 2U);
  EXPECT_EQ(metadata.num_seqs(1), 0U);
  EXPECT_EQ(metadata.max_seqs(), 2U);
  EXPECT_EQ(metadata.rows(), 3U);
  EXPECT_EQ(metadata.copies(), 3U);
  EXPECT_EQ(metadata.num_send_tokens(0), 3U);
  EXPECT_EQ(metadata.num_send_tokens(1), 0U);
  EXPECT_EQ(metadata.row(0, 1).begin, 3U);
  EXPECT_EQ(metadata.row(2, 0).begin, 0U);
}

TEST(Metadata, LeavesOutCopiesToNowhereAtTheEndOfARowOnly) {
  const Metadata metadata = build({{{3, {{-1, 0}, {0, 4}, {-1, 0}}}, {0, {{-1, 0}, {-1, 0}}}}}, 3);
  EXPECT_EQ(rows_of(metadata), (Rows{{{3, {{-1, 0}, {0, 4}}}, {0, {}}}}));
}

TEST(Metadata, OfNoRanksIsEmpty) {
  const Metadata none;
  EXPECT_EQ(none.world_size(), 0);
  EXPECT_EQ(none.max_seqs(), 0U);
  EXPECT_EQ(none.rows(), 0U);
}

TEST(Metadata, CountsWhatARankReceivesFromEach) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const MetadataPair kv = compute_metadata_kv(any_routing(random));
    for (const Metadata* metadata : {&kv.forward, &kv.reverse}) {
      for (int rank = 0; rank < metadata->world_size(); ++rank) {
        const Totals totals = expected_totals(*metadata, rank);
        ASSERT_EQ(metadata->num_recv_tokens(rank), totals) << "seed " << seed;
        ASSERT_EQ(metadata->num_total_recv_tokens(rank), totals.back()) << "seed " << seed;
      }
    }
  }
}

TEST(Metadata, CountsMoreThanThirtyTwoBitsOfReceivedTokens) {
  const Metadata metadata = build({{{kMax32, {{0, 0}}}}, {{kMax32, {{0, 0}}}}});
  EXPECT_EQ(metadata.num_total_recv_tokens(0), 2 * std::uint64_t{kMax32});
  EXPECT_EQ(metadata.num_recv_tokens(0), (Totals{kMax32, kMax32, 2 * std::uint64_t{kMax32}}));
}

TEST(Metadata, RefusesMoreTokensOnARankThanThirtyTwoBitsCount) {
  EXPECT_EQ(thrown_codes([] { (void)build({{{kMax32, {{0, 0}}}, {1, {{0, 0}}}}}); }),
            Codes{"D410"});
}

TEST(Metadata, IsEqualOnlyIfEverythingIs) {
  const Rows rows{{{3, {{0, 5}}}}};
  EXPECT_EQ(build(rows), build(rows));
  EXPECT_NE(build(rows), build({{{3, {{0, 6}}}}}));
  EXPECT_NE(build(rows), build({{{2, {{0, 5}}}}}));
  EXPECT_NE(build(rows), build(rows, 1));
  EXPECT_NE(build(rows), build(rows, 0, ArrivalMode::summed));
  EXPECT_NE(build(rows), build({{{3, {{0, 5}}}}, {}}));
}

TEST(Metadata, NamesArrivals) {
  EXPECT_EQ(name(ArrivalMode::placed), "placed");
  EXPECT_EQ(name(ArrivalMode::summed), "summed");
}

TEST(BytesAt, MultipliesTokensByTheBytesOfARow) {
  EXPECT_EQ(bytes_at(3, 128), Bytes{384});
  EXPECT_EQ(bytes_at(kMax32, 8192), Bytes{std::int64_t{kMax32} * 8192});
}

TEST(Hashes, ChangeWithTheirFieldAndNoOther) {
  for (const int max_cp : {0, 2}) {
    const Rows rows{{{3, {{1, 5}}}, {4, {{0, 6}}}}, {{2, {{0, 7}}}}};
    const Metadata metadata = build(rows, max_cp);
    EXPECT_EQ(differing(metadata, build(rows, max_cp)), Codes{});
    for (const std::size_t row : {0U, 1U}) {
      Rows other = rows;
      ++other[0][row].length;
      EXPECT_EQ(differing(metadata, build(other, max_cp)), Codes{"seq_len"});
      other = rows;
      other[0][row].copies[0].rank = -1 + other[0][row].copies[0].rank;
      if (other[0][row].copies[0].rank >= 0 || max_cp == 0) {
        EXPECT_EQ(differing(metadata, build(other, max_cp)), Codes{"dst_rank"});
      }
      other = rows;
      ++other[0][row].copies[0].offset;
      EXPECT_EQ(differing(metadata, build(other, max_cp)), Codes{"dst_offset"});
    }
    EXPECT_EQ(differing(metadata, build(rows, max_cp, ArrivalMode::summed)), Codes{"arrival"});
  }
}

TEST(Hashes, OfRandomTablesChangeWithOneNumber) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    const Metadata metadata = compute_metadata_kv(any_routing(random)).forward;
    Rows rows = rows_of(metadata);
    auto& rank = random.pick(rows);
    if (rank.empty()) continue;
    Sent& row =
        rows[&rank - rows.data()][random.between(0, static_cast<std::int64_t>(rank.size()))];
    if (row.copies.empty()) continue;
    Copy& copy = row.copies[random.between(0, static_cast<std::int64_t>(row.copies.size()))];
    std::string field;
    switch (random.between(0, 3)) {
      case 0:
        row.length += 1;
        field = "seq_len";
        break;
      case 1:
        copy.rank += 1;
        field = "dst_rank";
        break;
      default:
        copy.offset += 1;
        field = "dst_offset";
    }
    ASSERT_EQ(differing(metadata, build(rows, metadata.max_cp())), Codes{field}) << "seed " << seed;
  }
}

TEST(Hashes, TellHowLengthsBelongToRanks) {
  EXPECT_EQ(differing(build({{{1, {{0, 0}}}, {1, {{0, 1}}}}, {}}),
                      build({{{1, {{0, 0}}}}, {{1, {{0, 1}}}}})),
            Codes{"seq_len"});
}

TEST(Hashes, TellTheNumberOfRanks) {
  EXPECT_THAT(differing(build({{}}), build({{}, {}})), testing::Contains("world_size"));
}

// ---- What it does NOT do

TEST(Metadata, DoesNotGrowWithTheSquareOfTheRanks) {
  const auto bytes_with = [](std::size_t ranks) {
    Rows rows(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows[rank].push_back({1, {{static_cast<std::int32_t>(rank), 0}}});
    }
    return static_cast<double>(build(rows).bytes().count);
  };
  EXPECT_LT(bytes_with(8000), 9 * bytes_with(1000));
}

TEST(Metadata, GrowsWithThePieces) {
  Rows rows(4);
  for (std::uint32_t i = 0; i < 1000; ++i) rows[0].push_back({1, {{1, i}}});
  const std::int64_t large = build(rows).bytes().count;
  EXPECT_GE(large, static_cast<std::int64_t>(1000 * (sizeof(Copy) + sizeof(std::uint32_t))));
  EXPECT_LE(build(Rows(4)).bytes().count, 1000);
}

TEST(Metadata, DoesNotJudgeWhatItHolds) {
  // A rank that does not exist, an overlap, tokens without destination: validate.h reports them.
  const Rows nonsense{{{3, {{9, 0}}}, {3, {{-1, 0}}}, {2, {{0, 0}}}, {2, {{0, 1}}}}};
  EXPECT_EQ(rows_of(build(nonsense)), nonsense);
}

TEST(Builder, DoesNotTakeRowsThatItsFormCannotHold) {
  EXPECT_THROW((void)build({{{1, {{0, 0}, {0, 1}}}}}), InternalError);
  EXPECT_THROW((void)build({{{1, {}}}}), InternalError);
  EXPECT_THROW((void)build({{{1, {{0, 0}, {0, 1}}}}}, 1), InternalError);
  Metadata::Builder unfinished({.world_size = 2});
  unfinished.end_rank();
  EXPECT_THROW((void)unfinished.take(), InternalError);
  unfinished.end_rank();
  EXPECT_THROW(unfinished.end_rank(), InternalError);
}

}  // namespace
}  // namespace shiplap::dispatch
