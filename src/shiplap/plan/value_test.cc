#include "shiplap/plan/value.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "shiplap/base/error.h"

namespace shiplap::plan {
namespace {

TEST(Ratio, IsInLowestTerms) {
  for (std::int64_t a = 1; a <= 30; ++a) {
    for (std::int64_t b = 1; b <= 30; ++b) {
      const Ratio ratio(a, b);
      EXPECT_EQ(ratio.numerator() * b, ratio.denominator() * a);
      EXPECT_EQ(std::gcd(ratio.numerator(), ratio.denominator()), 1);
    }
  }
}

TEST(Ratio, EqualFractionsAreEqual) {
  EXPECT_EQ(Ratio(2, 16), Ratio(1, 8));
  EXPECT_EQ(Ratio(), Ratio(7, 7));
  EXPECT_NE(Ratio(1, 8), Ratio(8, 1));
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(Ratio(kMax, kMax), Ratio());
}

TEST(Ratio, ThatIsNotPositiveBreaksAPromise) {
  EXPECT_THROW(Ratio(0, 1), InternalError);
  EXPECT_THROW(Ratio(1, 0), InternalError);
  EXPECT_THROW(Ratio(-1, 1), InternalError);
  EXPECT_THROW(Ratio(1, -1), InternalError);
}

TEST(Tensor, CountsTheDimensionsOfItsPartBeforeThoseOfItsSum) {
  const Tensor tensor{
      .kind = "WeightGrad", .part = {{"shard", 4}}, .sum = {{"sample", 8}, {"use", 2}}};
  EXPECT_EQ(tensor.dimensions(), 3U);
  EXPECT_EQ(tensor.dimension(DimensionId(std::int32_t{0})).name, "shard");
  EXPECT_EQ(tensor.dimension(DimensionId(std::int32_t{2})).name, "use");
  EXPECT_FALSE(tensor.in_sum(DimensionId(std::int32_t{0})));
  EXPECT_TRUE(tensor.in_sum(DimensionId(std::int32_t{1})));
}

TEST(Tensor, OnlyWeightsAndOptimizerStateHaveVersions) {
  EXPECT_TRUE(Tensor{.kind = "Weight"}.has_versions());
  EXPECT_TRUE(Tensor{.kind = "OptState"}.has_versions());
  EXPECT_FALSE(Tensor{.kind = "WeightGrad"}.has_versions());
}

}  // namespace
}  // namespace shiplap::plan
