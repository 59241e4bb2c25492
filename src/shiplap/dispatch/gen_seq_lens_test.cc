// gen_seq_lens: its guarantees, and properties that it does not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Lengths = std::vector<std::vector<std::uint32_t>>;

std::uint64_t sum(const std::vector<std::uint32_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
}

// ---- What it DOES

TEST(GenSeqLens, GivesPositiveLengthsThatSumExactlyToTheTotalOnEachRank) {
  Random random(1);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const int num_seqs = static_cast<int>(random.between(1, 30));
    const auto total = static_cast<std::uint32_t>(random.between(num_seqs, num_seqs + 100));
    const int world_size = static_cast<int>(random.between(1, 6));
    const Lengths lengths =
        gen_seq_lens({.world_size = world_size, .num_seqs = num_seqs, .total_len = total}, seed);
    ASSERT_EQ(lengths.size(), at(world_size));
    for (const auto& rank : lengths) {
      ASSERT_EQ(rank.size(), at(num_seqs)) << "seed " << seed;
      ASSERT_THAT(rank, testing::Each(testing::Ge(1U))) << "seed " << seed;
      ASSERT_EQ(sum(rank), total) << "seed " << seed;
    }
  }
}

TEST(GenSeqLens, GivesTheSameLengthsForTheSameSeed) {
  const SequenceCounts counts{.world_size = 4, .num_seqs = 8, .total_len = 1000};
  EXPECT_EQ(gen_seq_lens(counts, 42), gen_seq_lens(counts, 42));
  EXPECT_NE(gen_seq_lens(counts, 42), gen_seq_lens(counts, 43));
}

TEST(GenSeqLens, GivesARankTheSameLengthsWhateverTheNumberOfRanks) {
  const Lengths many = gen_seq_lens({.world_size = 9, .num_seqs = 5, .total_len = 77}, 7);
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const Lengths few = gen_seq_lens({.world_size = world_size, .num_seqs = 5, .total_len = 77}, 7);
    EXPECT_EQ(few, Lengths(many.begin(), many.begin() + world_size));
  }
}

TEST(GenSeqLens, GivesOnesWhereThereAreAsManyTokensAsSequences) {
  EXPECT_EQ(gen_seq_lens({.world_size = 2, .num_seqs = 3, .total_len = 3}, 5),
            (Lengths{{1, 1, 1}, {1, 1, 1}}));
}

TEST(GenSeqLens, GivesTheWholeTotalToOneSequence) {
  EXPECT_EQ(gen_seq_lens({.world_size = 1, .num_seqs = 1, .total_len = kMax32}, 5),
            (Lengths{{kMax32}}));
}

TEST(GenSeqLens, SumsExactlyAtTheLargestTotal) {
  const Lengths lengths = gen_seq_lens({.world_size = 3, .num_seqs = 100, .total_len = kMax32}, 5);
  for (const auto& rank : lengths) EXPECT_EQ(sum(rank), kMax32);
}

// 5 tokens are cut into 3 in 6 ways. Of 60,000 draws each has 10,000, with a deviation of 91.
TEST(GenSeqLens, DrawsEveryWayToCutEquallyOften) {
  std::map<std::vector<std::uint32_t>, int> seen;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    for (const auto& rank : gen_seq_lens({.world_size = 3, .num_seqs = 3, .total_len = 5}, seed)) {
      ++seen[rank];
    }
  }
  EXPECT_EQ(seen.size(), 6U);
  for (const auto& [lengths, times] : seen) {
    EXPECT_NEAR(times, 10'000, 500) << testing::PrintToString(lengths);
  }
}

TEST(GenSeqLens, RefusesWhatIsImpossible) {
  const auto rejected = [](const SequenceCounts& counts) {
    return thrown_codes([&] { (void)gen_seq_lens(counts, 0); });
  };
  EXPECT_EQ(rejected({.world_size = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.world_size = -1}), Codes{"D400"});
  EXPECT_EQ(rejected({.num_seqs = 0}), Codes{"D400"});
  EXPECT_EQ(rejected({.num_seqs = -3, .total_len = 5}), Codes{"D400"});
  EXPECT_EQ(rejected({.num_seqs = 6, .total_len = 5}), Codes{"D400"});
  EXPECT_EQ(rejected({.total_len = 0}), Codes{"D400"});
}

// ---- What it does NOT do

TEST(GenSeqLens, DoesNotMakeLengthsEqual) {
  const auto rank = gen_seq_lens({.num_seqs = 16, .total_len = 1600}, 0).front();
  EXPECT_GT(*std::ranges::max_element(rank), 200U);  // twice the mean
  EXPECT_LT(*std::ranges::min_element(rank), 50U);
}

TEST(GenSeqLens, DoesNotBalanceTheAttentionOfRanks) {
  const Lengths lengths = gen_seq_lens({.world_size = 8, .num_seqs = 8, .total_len = 4096}, 0);
  std::vector<double> work;
  for (const auto& rank : lengths) {
    double squares = 0;
    for (const std::uint32_t length : rank) squares += static_cast<double>(length) * length;
    work.push_back(squares);
  }
  EXPECT_GT(*std::ranges::max_element(work), 1.2 * *std::ranges::min_element(work));
}

TEST(GenSeqLens, DoesNotFollowAModelOfDocuments) {
  // Such a model would scale: twice the tokens, twice as long. Nor are lengths sorted, nor
  // distinct.
  const auto one = gen_seq_lens({.num_seqs = 8, .total_len = 100}, 3).front();
  auto twice = one;
  for (std::uint32_t& length : twice) length *= 2;
  EXPECT_NE(gen_seq_lens({.num_seqs = 8, .total_len = 200}, 3).front(), twice);
  EXPECT_FALSE(std::ranges::is_sorted(one));
  EXPECT_FALSE(std::ranges::is_sorted(one, std::greater<>()));
}

}  // namespace
}  // namespace shiplap::dispatch
