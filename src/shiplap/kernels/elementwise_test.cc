#include "shiplap/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace shiplap::kernels {
namespace {

std::vector<float> tanh_of(std::vector<float> x) {
  apply_tanh(x, x);
  return x;
}

TEST(Tanh, IsThatOfTheLibrary) {
  std::vector<float> x;
  for (int exponent = -140; exponent <= 7; ++exponent) {
    for (int k = 0; k < 200; ++k)
      x.push_back(std::ldexp(1 + static_cast<float>(k) / 200, exponent));
  }
  for (int k = 0; k < 100'000; ++k) {  // the largest errors are above 0.25
    x.push_back(0.25F + static_cast<float>(k) * 2.5e-6F);
    x.push_back(-x.back());
  }
  const std::vector<float> results = tanh_of(x);
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double right = std::tanh(static_cast<double>(x[k]));
    ASSERT_NEAR(results[k], right, 6e-7 * std::abs(right) + 1e-45) << x[k];
  }
}

TEST(Tanh, IsOddAndKeepsWhatIsNoNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> results =
      tanh_of({kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0F, -0.0F, 1, -1});
  EXPECT_EQ(results[0], 1);
  EXPECT_EQ(results[1], -1);
  EXPECT_TRUE(std::isnan(results[2]));
  EXPECT_EQ(results[3], 0);
  EXPECT_TRUE(std::signbit(results[4]));
  EXPECT_NEAR(results[5], -results[6], 1e-7);
}

TEST(Tanh, HasTheSameBitsAtEveryPosition) {
  for (const float x : {0.01F, -0.2F, 0.3F, 2.0F, -11.0F}) {
    const std::vector<float> results = tanh_of(std::vector<float>(37, x));
    for (const float result : results) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(result), std::bit_cast<std::uint32_t>(results[0]));
    }
  }
}

}  // namespace
}  // namespace shiplap::kernels
