#include "shiplap/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::vector<std::uint64_t> first_numbers(Random random, int count) {
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(random.next());
  return numbers;
}

// Computed by a Python program written from the authors' C, after that program had given the known
// outputs of both parts: 6457827717110365317 first for SplitMix64 from 1234567, and 11520, 0,
// 1509978240, 1215971899390074240 for xoshiro256** from the state 1, 2, 3, 4.
TEST(Random, GivesTheNumbersOfThePublishedAlgorithm) {
  using Numbers = std::vector<std::uint64_t>;
  EXPECT_EQ(first_numbers(Random(0), 5),
            (Numbers{0x99ec5f36cb75f2b4, 0xbf6e1f784956452a, 0x1a5f849d4933e6e0, 0x6aa594f1262d2d2c,
                     0xbba5ad4a1f842e59}));
  EXPECT_EQ(first_numbers(Random(42), 5),
            (Numbers{0x15780b2e0c2ec716, 0x6104d9866d113a7e, 0xae17533239e499a1, 0xecb8ad4703b360a1,
                     0xfde6dc7fe2ec5e64}));
  EXPECT_EQ(first_numbers(Random(0xFFFFFFFFFFFFFFFF), 5),
            (Numbers{0x8f5520d52a7ead08, 0xc476a018caa1802d, 0x81de31c0d260469e, 0xbf658d7e065f3c2f,
                     0x913593fda1bca32a}));
}

TEST(Random, SetsEachBitHalfOfTheTime) {
  Random random(1);
  constexpr int kDraws = 100000;
  std::array<int, 64> ones{};
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t number = random.next();
    for (std::size_t bit = 0; bit < 64; ++bit) ones[bit] += static_cast<int>(number >> bit & 1);
  }
  for (const int count : ones) EXPECT_NEAR(count, kDraws / 2.0, 5 * std::sqrt(kDraws / 4.0));
}

// Chi-squared of equally likely cells: about `cells - 1`, give or take sqrt(2 (cells - 1)).
double chi_squared(const std::vector<int>& counts) {
  const double mean =
      std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) sum += (count - mean) * (count - mean) / mean;
  return sum;
}

TEST(Between, IsUniform) {
  for (const std::int64_t size : {2, 3, 7, 10, 64, 100}) {
    Random random(static_cast<std::uint64_t>(size));
    std::vector<int> counts(size, 0);
    for (std::int64_t i = 0; i < 1000 * size; ++i) {
      const std::int64_t number = random.between(-5, size - 5);
      ASSERT_GE(number, -5);
      ASSERT_LT(number, size - 5);
      ++counts[number + 5];
    }
    const double freedom = static_cast<double>(size - 1);
    EXPECT_LT(chi_squared(counts), freedom + 5 * std::sqrt(2 * freedom) + 5) << size;
  }
}

// With a range of 3 x 2^62, plain `next() % range` would give the lowest third twice as often as
// either of the others.
TEST(Between, HasNoBiasWhereTheRangeDoesNotDivideTwoToThe64) {
  Random random(11);
  const std::int64_t end = std::int64_t{1} << 62;  // -2^63 .. 2^62 is three times 2^62
  std::vector<int> thirds(3, 0);
  for (int i = 0; i < 30000; ++i) {
    const auto distance =
        static_cast<std::uint64_t>(random.between(kMin, end)) - static_cast<std::uint64_t>(kMin);
    ++thirds[distance >> 62];
  }
  EXPECT_LT(chi_squared(thirds), 20);
}

TEST(Between, KnowsTheWidestAndTheNarrowestRange) {
  Random random(3);
  bool negative = false;
  bool positive = false;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(random.between(kMax - 1, kMax), kMax - 1);
    EXPECT_EQ(random.between(kMin, kMin + 1), kMin);
    const std::int64_t any = random.between(kMin, kMax);
    (any < 0 ? negative : positive) = true;
  }
  EXPECT_TRUE(negative && positive);
}

TEST(Between, RefusesAnEmptyRange) {
  Random random(0);
  EXPECT_THROW(random.between(4, 4), InternalError);
  EXPECT_THROW(random.between(5, 4), InternalError);
  EXPECT_THROW(random.pick(std::vector<int>{}), InternalError);
}

TEST(Unit, IsUniformFromZeroToBelowOneInStepsOfTwoToTheMinus53) {
  Random random(5);
  std::vector<int> counts(50, 0);
  for (int i = 0; i < 50000; ++i) {
    const double number = random.unit();
    ASSERT_GE(number, 0.0);
    ASSERT_LT(number, 1.0);
    ASSERT_EQ(std::ldexp(number, 53), std::floor(std::ldexp(number, 53)));
    ++counts[static_cast<std::size_t>(number * 50)];
  }
  EXPECT_LT(chi_squared(counts), 49 + 5 * std::sqrt(98.0));
}

TEST(Unit, IsTheTop53BitsOfTheNextNumber) {
  EXPECT_EQ(Random(0).unit(), 0x133d8be6d96ebep0 * 0x1p-53);  // 0x99ec5f36cb75f2b4 >> 11
}

TEST(Chance, IsAsLikelyAsAskedFor) {
  Random random(9);
  for (const double probability : {0.1, 0.5, 0.9}) {
    int heads = 0;
    for (int i = 0; i < 10000; ++i) heads += random.chance(probability) ? 1 : 0;
    EXPECT_NEAR(heads, 10000 * probability, 5 * 50);
  }
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(random.chance(0));
    EXPECT_TRUE(random.chance(1));
  }
}

TEST(Shuffle, GivesEachOrderEquallyOften) {
  Random random(13);
  std::map<std::vector<int>, int> seen;
  for (int i = 0; i < 24000; ++i) {
    std::vector<int> values{0, 1, 2, 3};
    random.shuffle(values);
    ++seen[values];
  }
  std::vector<int> counts;
  for (const auto& [order, count] : seen) counts.push_back(count);
  EXPECT_EQ(counts.size(), 24u);
  EXPECT_LT(chi_squared(counts), 23 + 5 * std::sqrt(46.0));
}

TEST(Pick, ChoosesEveryValue) {
  Random random(17);
  std::set<int> seen;
  for (int i = 0; i < 100; ++i) seen.insert(random.pick(std::vector<int>{4, 5, 6}));
  EXPECT_EQ(seen, (std::set<int>{4, 5, 6}));
}

TEST(Split, DoesNotDependOnWhatWasDrawnBefore) {
  Random random(19);
  const auto before = first_numbers(random.split(3), 4);
  random.next();
  random.unit();
  EXPECT_EQ(first_numbers(random.split(3), 4), before);
}

// From the same Python program.
TEST(Split, IsTheSameOnEveryMachine) {
  EXPECT_EQ(Random(42).split(0).next(), 0xc986fd807e5b8ab5u);
  EXPECT_EQ(Random(42).split(7).next(), 0x345700039a1d3713u);
}

TEST(Split, GivesDifferentNumbersForEachPartAndSeedAndOrder) {
  std::set<std::uint64_t> seen;
  std::size_t streams = 0;
  const auto add = [&](const Random& random) {
    ++streams;
    seen.insert(first_numbers(random, 1)[0]);
  };
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    add(Random(seed));
    for (std::uint64_t i = 0; i < 30; ++i) {
      add(Random(seed).split(i));
      for (std::uint64_t j = 0; j < 30; ++j) add(Random(seed).split(i).split(j));
    }
  }
  EXPECT_EQ(seen.size(), streams);
}

TEST(Split, PartsAreNotCorrelated) {
  // The k-th parts of one generator, taken together, are uniform as well.
  std::vector<int> counts(16, 0);
  const Random random(23);
  for (std::uint64_t i = 0; i < 16000; ++i) ++counts[random.split(i).next() >> 60];
  EXPECT_LT(chi_squared(counts), 15 + 5 * std::sqrt(30.0));
}

}  // namespace
}  // namespace shiplap
