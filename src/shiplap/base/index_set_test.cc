// Every property is compared with std::set, which has no runs.
#include "shiplap/base/index_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap {
namespace {

using Plain = std::set<std::int32_t>;

IndexSet from(const Plain& plain) {
  return IndexSet(std::vector<std::int32_t>(plain.begin(), plain.end()));
}

Plain bits_of(unsigned mask) {
  Plain plain;
  for (std::int32_t i = 0; i < 32; ++i) {
    if ((mask >> static_cast<unsigned>(i) & 1U) != 0) plain.insert(i);
  }
  return plain;
}

Plain plain_of(const IndexSet& set) {
  const std::vector<std::int32_t> listed = set.indices();
  return {listed.begin(), listed.end()};
}

Plain united(Plain a, const Plain& b) {
  a.insert(b.begin(), b.end());
  return a;
}

bool share(const Plain& a, const Plain& b) {
  return std::ranges::any_of(a, [&](std::int32_t i) { return b.contains(i); });
}

// The invariants of a list of runs.
void expect_well_formed(const IndexSet& set) {
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  std::int64_t size = 0;
  for (const IndexSet::Run& run : set.runs()) {
    EXPECT_GE(run.count, 1);
    EXPECT_GE(run.stride, 1);
    EXPECT_TRUE(run.count > 1 || run.stride == 1);
    EXPECT_GT(run.begin, last);
    last = run.last();
    size += run.count;
  }
  EXPECT_EQ(set.size(), size);
  EXPECT_EQ(set.empty(), size == 0);
}

void expect_is(const IndexSet& set, const Plain& plain) {
  expect_well_formed(set);
  ASSERT_EQ(plain_of(set), plain);
  EXPECT_TRUE(std::ranges::is_sorted(set.indices()));
  EXPECT_EQ(set.size(), static_cast<std::int64_t>(plain.size()));
  EXPECT_EQ(set, from(plain));  // equal sets have equal runs, however they were made
}

void expect_pair(const IndexSet& a, const IndexSet& b) {
  const Plain plain_a = plain_of(a);
  const Plain plain_b = plain_of(b);
  expect_is(a.united(b), united(plain_a, plain_b));
  EXPECT_EQ(a.overlaps(b), share(plain_a, plain_b));
  EXPECT_EQ(a.includes(b), std::ranges::includes(plain_a, plain_b));
  EXPECT_EQ(a == b, plain_a == plain_b);
  Plain shared;
  Plain only_a;
  for (const std::int32_t i : plain_a) (plain_b.contains(i) ? shared : only_a).insert(i);
  expect_is(a.intersected(b), shared);
  expect_is(a.without(b), only_a);
  const std::vector<const IndexSet*> both{&a, &b};
  const Union all = unite(both);
  EXPECT_EQ(all.set, a.united(b));
  ASSERT_EQ(all.duplicate >= 0, share(plain_a, plain_b));
  EXPECT_TRUE(all.duplicate < 0 || (a.contains(all.duplicate) && b.contains(all.duplicate)));
}

TEST(IndexSet, OfEverySubsetOfTenHoldsWhatWasGiven) {
  for (unsigned mask = 0; mask < 1U << 10U; ++mask) {
    const Plain plain = bits_of(mask);
    const IndexSet set = from(plain);
    expect_is(set, plain);
    for (std::int32_t i = -2; i < 13; ++i) EXPECT_EQ(set.contains(i), plain.contains(i));
    for (int count = 0; count <= 11; ++count) {
      EXPECT_EQ(set.covers(count), plain == bits_of((1U << static_cast<unsigned>(count)) - 1));
    }
    if (testing::Test::HasFailure()) FAIL() << "subset " << mask;
  }
}

TEST(IndexSet, OfEveryTwoSubsetsOfSixAgreesWithPlainSets) {
  for (unsigned a = 0; a < 1U << 6U; ++a) {
    for (unsigned b = 0; b < 1U << 6U; ++b) {
      expect_pair(from(bits_of(a)), from(bits_of(b)));
      if (testing::Test::HasFailure()) FAIL() << "subsets " << a << " and " << b;
    }
  }
}

IndexSet random_runs(Random& random) {
  IndexSet set;
  const std::int64_t runs = random.between(0, 5);
  for (std::int64_t i = 0; i < runs; ++i) {
    set = set.united(
        IndexSet::range(random.between(0, 400), random.between(0, 60), random.between(1, 9)));
  }
  return set;
}

TEST(IndexSet, OfTwoRunsAgreesWithPlainSets) {
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    const auto run = [&] {
      return IndexSet::range(random.between(0, 40), random.between(1, 30), random.between(1, 15));
    };
    const IndexSet a = run();
    const IndexSet b = run();
    expect_pair(a, b);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(IndexSet, OfLongRunsIsFoundWithoutCounting) {
  constexpr std::int64_t kMax = INT32_MAX - 1;
  const IndexSet odd = IndexSet::range(1, kMax / 2, 2);
  const IndexSet sevenths = IndexSet::range(3, kMax / 7, 7);
  EXPECT_EQ(odd.intersected(sevenths).runs().front(),
            (IndexSet::Run{.begin = 3, .count = 153391689, .stride = 14}));
  EXPECT_FALSE(odd.overlaps(IndexSet::range(0, kMax / 2, 2)));
  EXPECT_TRUE(IndexSet::range(0, kMax).includes(odd));
  EXPECT_FALSE(odd.includes(sevenths));
  const IndexSet coprime = IndexSet::range(0, 2, kMax).intersected(IndexSet::range(5, 2, 99'991));
  EXPECT_TRUE(coprime.empty());
}

TEST(IndexSet, OfManyRandomRunsAgreesWithPlainSets) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const IndexSet a = random_runs(random);
    const IndexSet b = random_runs(random);
    expect_well_formed(a);
    expect_pair(a, b);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(IndexSet, KnowsNoOrderAndNoRepetition) {
  Random random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::int32_t> listed = random_runs(random).indices();
    const IndexSet sorted(listed);
    if (!listed.empty()) listed.push_back(random.pick(listed));
    random.shuffle(listed);
    EXPECT_EQ(IndexSet(listed), sorted) << "round " << round;
  }
}

TEST(IndexSet, IsOneRunWhenDealtInBlocksOrInTurn) {
  EXPECT_EQ(IndexSet::range(1024, 1 << 20).runs().size(), 1U);
  EXPECT_EQ(IndexSet::range(3, 1 << 20, 128).runs().size(), 1U);
  // The microbatches of one rank of a round-robin distribution; also from both ends.
  IndexSet mine(3);
  for (int i = 1; i < 50; ++i) {
    mine = mine.united(IndexSet(3 + std::int64_t{i} * 8));
    EXPECT_EQ(mine.runs().size(), 1U) << i;
  }
  EXPECT_EQ(mine, IndexSet::range(3, 50, 8));
  IndexSet backwards(3 + 49 * 8);
  for (int i = 48; i >= 0; --i) {
    backwards = IndexSet(3 + std::int64_t{i} * 8).united(backwards);
    EXPECT_EQ(backwards.runs().size(), 1U) << i;
  }
  EXPECT_EQ(backwards, mine);
}

TEST(IndexSet, ThatWasDealtOutIsOneRunAgainWhenAllCome) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    IndexSet all;
    for (int rank = 0; rank < ranks; ++rank) {
      all = all.united(IndexSet::range(rank, 12, ranks));
    }
    EXPECT_TRUE(all.covers(12 * std::int64_t{ranks})) << ranks;
    EXPECT_EQ(all.runs().size(), 1U);
  }
}

TEST(Unite, OfAThousandInterleavedSetsIsOneRun) {
  std::vector<IndexSet> dealt;
  for (int rank = 0; rank < 1000; ++rank) dealt.push_back(IndexSet::range(rank, 17, 1000));
  Random random(3);
  random.shuffle(dealt);
  std::vector<const IndexSet*> sets;
  for (const IndexSet& set : dealt) sets.push_back(&set);
  const Union all = unite(sets);
  EXPECT_EQ(all.duplicate, -1);
  EXPECT_EQ(all.set.runs().size(), 1U);
  EXPECT_TRUE(all.set.covers(17'000));
}

// Distributed positions under a causal mask: some ranks have one more.
TEST(Unite, OfInterleavedSetsThatAreCutOffAgreesWithPlainSets) {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    const std::int64_t ranks = random.between(2, 5);
    const std::int64_t step = random.between(1, 3);
    const std::int64_t begin = random.between(0, 9);
    const std::int64_t end = begin + random.between(1, 40);
    std::vector<IndexSet> dealt;
    Plain plain;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = begin + rank * step;
      const std::int64_t stride = ranks * step;
      std::int64_t count = first < end ? (end - 1 - first) / stride + 1 : 0;
      if (random.between(0, 5) == 0) count = random.between(0, count + 1);  // one ends too early
      dealt.push_back(IndexSet::range(first, count, stride));
      plain.merge(plain_of(dealt.back()));
    }
    random.shuffle(dealt);
    std::vector<const IndexSet*> sets;
    for (const IndexSet& set : dealt) sets.push_back(&set);
    const Union all = unite(sets);
    EXPECT_EQ(all.duplicate, -1);
    expect_is(all.set, plain);
  }
}

TEST(Unite, FindsTheIndexThatTwoHold) {
  std::vector<IndexSet> dealt;
  for (int rank = 0; rank < 100; ++rank) dealt.push_back(IndexSet::range(rank, 10, 100));
  dealt[40] = dealt[40].united(IndexSet(std::int64_t{777}));  // which is rank 77's
  std::vector<const IndexSet*> sets;
  for (const IndexSet& set : dealt) sets.push_back(&set);
  EXPECT_EQ(unite(sets).duplicate, 777);
  EXPECT_TRUE(unite(sets).set.covers(1000));
}

TEST(Unite, OfNothingIsNothing) {
  const IndexSet empty;
  const std::vector<const IndexSet*> two{&empty, &empty};
  EXPECT_TRUE(unite({}).set.empty());
  EXPECT_TRUE(unite(two).set.empty());
  EXPECT_EQ(unite(two).duplicate, -1);
}

TEST(IndexSet, IsCopiedWhole) {
  const IndexSet set(std::vector<std::int32_t>{0, 1, 5, 9, 20});
  ASSERT_GT(set.runs().size(), 1U);
  IndexSet copy(set);
  EXPECT_EQ(copy, set);
  copy = IndexSet(std::int64_t{4});
  EXPECT_EQ(copy.indices(), (std::vector<std::int32_t>{4}));
  copy = set;
  const IndexSet& alias = copy;
  copy = alias;
  EXPECT_EQ(copy, set);
  const IndexSet taken = std::move(copy);
  EXPECT_EQ(taken, set);
  EXPECT_EQ(set.size(), 5);
}

TEST(IndexSet, ReachesTheLastIndexAndNoFurther) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int32_t>::max() - 1;
  EXPECT_TRUE(IndexSet(kLast).contains(kLast));
  EXPECT_TRUE(IndexSet::range(0, 2, kLast).contains(kLast));
  EXPECT_EQ(IndexSet::range(0, kLast + 1).size(), kLast + 1);
  EXPECT_EQ(IndexSet::range(0, kLast).united(IndexSet(kLast)).size(), kLast + 1);
  EXPECT_THROW(IndexSet{kLast + 1}, InternalError);
  EXPECT_THROW((void)IndexSet::range(0, kLast + 2), InternalError);
}

TEST(IndexSet, BreaksNoPromiseForWhatIsNoRun) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW((void)IndexSet::range(0, -1), InternalError);
  EXPECT_THROW((void)IndexSet::range(0, 1, 0), InternalError);
  EXPECT_THROW((void)IndexSet::range(-1, 1), InternalError);
  EXPECT_THROW((void)IndexSet::range(0, kHuge, 1), InternalError);
  EXPECT_THROW((void)IndexSet::range(0, 3, kHuge), InternalError);
  EXPECT_THROW(IndexSet{std::int64_t{-1}}, InternalError);
  EXPECT_THROW(IndexSet(std::vector<std::int32_t>{3, -1}), InternalError);
  EXPECT_TRUE(IndexSet::range(5, 0).empty());
  EXPECT_EQ(IndexSet::range(5, 0), IndexSet());
  EXPECT_EQ(IndexSet::range(5, 1, 9), IndexSet(std::int64_t{5}));
}

TEST(IndexSet, CommonAndRemainingIndicesAreThoseOfEveryPairOfSmallSets) {
  const auto set_of = [](unsigned bits) {
    std::vector<std::int32_t> indices;
    for (std::int32_t i = 0; i < 6; ++i) {
      if ((bits >> static_cast<unsigned>(i)) & 1U) indices.push_back(i);
    }
    return IndexSet(std::move(indices));
  };
  for (unsigned a = 0; a < 64; ++a) {
    for (unsigned b = 0; b < 64; ++b) {
      EXPECT_EQ(set_of(a).intersected(set_of(b)), set_of(a & b)) << a << " " << b;
      EXPECT_EQ(set_of(a).without(set_of(b)), set_of(a & ~b)) << a << " " << b;
      EXPECT_EQ(set_of(a).overlaps(set_of(b)), (a & b) != 0) << a << " " << b;
    }
    EXPECT_EQ(set_of(a).shifted(3).shifted(-3), set_of(a));
    EXPECT_EQ(set_of(a).shifted(1).size(), set_of(a).size());
  }
  EXPECT_THROW((void)IndexSet(std::int64_t{2}).shifted(-3), InternalError);
}

TEST(IndexSet, IsSaidInFewWords) {
  const auto said = [](std::vector<std::int32_t> indices) {
    return to_string(IndexSet(std::move(indices)));
  };
  EXPECT_EQ(said({}), "none");
  EXPECT_EQ(said({5}), "5");
  EXPECT_EQ(said({0, 1}), "0, 1");
  EXPECT_EQ(said({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(said({0, 1, 2, 3, 8}), "0-3 and 8");
  EXPECT_EQ(said({0, 4, 5, 6}), "0 and 4-6");
  EXPECT_EQ(said({0, 4}), "0, 4");
  EXPECT_EQ(said({0, 4, 8}), "0, 4, 8");
  EXPECT_EQ(to_string(IndexSet::range(1, 8, 4)), "1, 5, .. 29");
  std::vector<std::int32_t> primes{2, 3, 5, 11, 17, 29, 31, 43, 57, 61, 73, 89, 97, 211, 307};
  EXPECT_LT(said(primes).size(), 60U);
  EXPECT_TRUE(said(primes).ends_with(", ..")) << said(primes);
}

}  // namespace
}  // namespace shiplap
