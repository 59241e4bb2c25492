// Sums of boxes against plain sets of points.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

#include "shiplap/check/sums_internal.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kSide = 3;

using Point = std::vector<std::int32_t>;
using Points = std::set<Point>;

// The set of the numbers whose bits are set.
IndexSet of_bits(unsigned bits) {
  std::vector<std::int32_t> indices;
  for (int k = 0; k < 32; ++k) {
    if ((bits >> static_cast<unsigned>(k) & 1U) != 0) indices.push_back(k);
  }
  return IndexSet(std::move(indices));
}

void add_points(const Box& box, Points& points) {
  Points grown{{}};
  for (const BoxSide& part : box) {
    Points longer;
    for (const Point& point : grown) {
      for (const std::int32_t index : part.set.indices()) {
        Point next = point;
        next.push_back(index);
        longer.insert(std::move(next));
      }
    }
    grown = std::move(longer);
  }
  points.merge(grown);
}

Points points_of(const Sums& sums, SumId id) {
  Points points;
  std::size_t count = 0;
  for (const Box& box : sums[id]) {
    Points here;
    add_points(box, here);
    count += here.size();
    points.merge(here);
  }
  EXPECT_EQ(points.size(), count) << "boxes of one sum overlap";
  return points;
}

Points common(const Points& a, const Points& b) {
  Points result;
  std::ranges::set_intersection(a, b, std::inserter(result, result.end()));
  return result;
}

Points without(const Points& a, const Points& b) {
  Points result;
  std::ranges::set_difference(a, b, std::inserter(result, result.end()));
  return result;
}

// Every set of one dimension and every box of two, zero among them.
std::vector<SumId> all_boxes(Sums& sums, int dimensions) {
  std::vector<SumId> result{sums.intern({})};
  constexpr unsigned kAll = 1U << static_cast<unsigned>(kSide);
  for (unsigned x = 1; x < kAll; ++x) {
    if (dimensions == 1) result.push_back(sums.intern({{{of_bits(x)}}}));
    for (unsigned y = 1; y < kAll && dimensions == 2; ++y) {
      result.push_back(sums.intern({{{of_bits(x)}, {of_bits(y)}}}));
    }
  }
  return result;
}

class SumLaws {
 public:
  explicit SumLaws(Sums& sums) : sums_(sums) {}

  // Returns the union, if there is one.
  std::optional<SumId> hold(SumId a, SumId b) {
    const Points x = points_of(sums_, a);
    const Points y = points_of(sums_, b);
    EXPECT_EQ(sums_.same(a, b), x == y);
    EXPECT_EQ(sums_.zero(a), x.empty());
    EXPECT_EQ(points_of(sums_, sums_.intern(sums_.missing(a, b))), without(x, y));
    EXPECT_EQ(points_of(sums_, sums_.intern(sums_.common(a, b))), common(x, y));
    const std::optional<SumId> both = sums_.unite(a, b);
    EXPECT_EQ(both.has_value(), common(x, y).empty());
    EXPECT_EQ(sums_.unite(a, b), both) << "the second time";
    if (!both) return both;
    Points expected = x;
    expected.insert(y.begin(), y.end());
    EXPECT_EQ(points_of(sums_, *both), expected);
    const std::optional<SumId> turned = sums_.unite(b, a);
    EXPECT_TRUE(turned && sums_.same(*both, *turned));
    return both;
  }

 private:
  Sums& sums_;
};

TEST(Sums, OfOneBoxAreSetsOfPoints) {
  for (const int dimensions : {1, 2}) {
    Slopes slopes;
    Sums sums(slopes);
    SumLaws laws(sums);
    const std::vector<SumId> boxes = all_boxes(sums, dimensions);
    for (const SumId a : boxes) {
      for (const SumId b : boxes) laws.hold(a, b);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Equal points have equal ids, as long as they are one box.
TEST(Sums, OfOneBoxAreKeptOnce) {
  Slopes slopes;
  Sums sums(slopes);
  for (const int dimensions : {1, 2}) {
    const std::vector<SumId> once = all_boxes(sums, dimensions);
    EXPECT_EQ(all_boxes(sums, dimensions), once);
    EXPECT_EQ(std::set(once.begin(), once.end()).size(), once.size());
  }
}

TEST(Sums, OfSeveralBoxesAreSetsOfPoints) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    Slopes slopes;
    Sums sums(slopes);
    SumLaws laws(sums);
    const std::vector<SumId> boxes = all_boxes(sums, 2);
    std::vector<SumId> grown{boxes.front()};
    for (int step = 0; step < 24; ++step) {
      const SumId more = boxes[random() % boxes.size()];
      SumId& one = grown[random() % grown.size()];
      const std::optional<SumId> both = laws.hold(one, more);
      if (!both) continue;
      if (random() % 2 == 0) one = *both;
      grown.push_back(*both);
    }
    for (const SumId a : grown) {
      for (const SumId b : grown) laws.hold(a, b);
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

TEST(Sums, OfNoDimensionAreZeroOrOne) {
  Slopes slopes;
  Sums sums(slopes);
  const SumId zero = sums.intern({});
  const SumId one = sums.intern({Box{}});
  EXPECT_TRUE(sums.zero(zero));
  EXPECT_FALSE(sums.zero(one));
  EXPECT_FALSE(sums.same(zero, one));
  EXPECT_EQ(sums.unite(zero, one), one);
  EXPECT_EQ(sums.unite(one, zero), one);
  EXPECT_EQ(sums.unite(one, one), std::nullopt);
}

TEST(Slopes, AreKeptOnceAndZeroIsNone) {
  Slopes slopes;
  EXPECT_EQ(slopes.intern({0, 0}), 0);
  EXPECT_EQ(slopes.intern({}), 0);
  const SlopeId one = slopes.intern({1, 2});
  EXPECT_NE(one, 0);
  EXPECT_EQ(slopes.intern({1, 2}), one);
  EXPECT_NE(slopes.intern({2, 1}), one);
  EXPECT_THAT(slopes[one], ElementsAre(1, 2));
  EXPECT_THAT(slopes[0], IsEmpty());
}

// Bound at all positions, in any order of axes, it has moved by the product and moves no more.
TEST(Slopes, BoundAxisByAxisMoveAsFarAsAtOnce) {
  Slopes slopes;
  for (std::int64_t a = -2; a <= 2; ++a) {
    for (std::int64_t b = -2; b <= 2; ++b) {
      const SlopeId slope = slopes.intern({a, b});
      for (const std::array<std::int64_t, 2> at :
           {std::array<std::int64_t, 2>{0, 0}, {1, 0}, {2, 3}}) {
        const Slopes::Bound all = slopes.bind(slope, at);
        EXPECT_EQ(all.by, a * at[0] + b * at[1]);
        EXPECT_EQ(all.rest, 0);
        const Slopes::Bound first = slopes.bind(slope, std::array<std::int64_t, 2>{at[0], -1});
        const Slopes::Bound second =
            slopes.bind(first.rest, std::array<std::int64_t, 2>{-1, at[1]});
        EXPECT_EQ(first.by + second.by, all.by);
        EXPECT_EQ(second.rest, 0);
        EXPECT_EQ(first.rest, slopes.intern({0, b}));
      }
    }
  }
}

// At each position of an axis, a bound sum is the sum with its points moved.
TEST(Sums, BoundAtAPositionAreMoved) {
  Slopes slopes;
  Sums sums(slopes);
  for (unsigned x = 1; x < 8; ++x) {
    for (unsigned y = 1; y < 8; ++y) {
      for (std::int64_t move = 0; move <= 3; ++move) {
        const SumId id = sums.intern({{{of_bits(x), slopes.intern({move, 0})}, {of_bits(y)}}});
        for (std::int64_t position = 0; position < 4; ++position) {
          const SumId bound = sums.bind(id, std::array<std::int64_t, 2>{position, -1});
          const auto by = static_cast<unsigned>(move * position);
          EXPECT_EQ(bound, sums.intern({{{of_bits(x << by)}, {of_bits(y)}}}));
        }
        EXPECT_EQ(sums.bind(id, std::array<std::int64_t, 2>{-1, 5}), id);
      }
    }
  }
}

// The positions of the other ranks are unknown, so one answer for all ranks at once is impossible.
TEST(Sums, ThatMoveDifferentlyAreAsymmetric) {
  Slopes slopes;
  Sums sums(slopes);
  const SumId fixed = sums.intern({{{of_bits(1)}, {of_bits(1)}}});
  const SumId moving = sums.intern({{{of_bits(2), slopes.intern({1})}, {of_bits(1)}}});
  EXPECT_THROW((void)sums.unite(fixed, moving), Asymmetric);
  const SumId apart = sums.intern({{{of_bits(2), slopes.intern({1})}, {of_bits(2)}}});
  EXPECT_TRUE(sums.unite(fixed, apart));
  const SumId next = sums.intern({{{of_bits(4), slopes.intern({1})}, {of_bits(1)}}});
  const std::optional<SumId> both = sums.unite(moving, next);
  ASSERT_TRUE(both);
  EXPECT_EQ(*both, sums.intern({{{of_bits(6), slopes.intern({1})}, {of_bits(1)}}}));
}

}  // namespace
}  // namespace shiplap::check
