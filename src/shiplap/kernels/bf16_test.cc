#include "shiplap/kernels/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace shiplap::kernels {
namespace {

TEST(Bf16, EveryPatternSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      // Signalling NaNs become quiet.
      EXPECT_EQ(to_bf16(to_float(value)).bits, bits | 0x40);
    } else {
      EXPECT_EQ(to_bf16(to_float(value)), value);
    }
  }
}

// The two neighbours of a float are a pattern and the next one up, away from zero. Which one is
// nearer is asked of doubles, where their distances are exact.
TEST(Bf16, EveryFloatGoesToTheNearestAndTiesToTheEvenOne) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 low{static_cast<std::uint16_t>(bits)};
    const Bf16 high{static_cast<std::uint16_t>(bits + 1)};
    if (!std::isfinite(to_float(low)) || !std::isfinite(to_float(high))) continue;
    for (const std::uint32_t rest : {0x1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const auto value = std::bit_cast<float>((bits << 16) | rest);
      const double down = std::abs(double{value} - double{to_float(low)});
      const double up = std::abs(double{to_float(high)} - double{value});
      const Bf16 even = bits % 2 == 0 ? low : high;
      const Bf16 expected = down < up ? low : up < down ? high : even;
      ASSERT_EQ(to_bf16(value), expected) << bits << " " << rest;
    }
  }
}

TEST(Bf16, WhatIsTooLargeBecomesInfinite) {
  EXPECT_EQ(to_bf16(3.39e38F).bits, 0x7f7f);
  EXPECT_EQ(to_bf16(3.4e38F).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-3.4e38F).bits, 0xff80);
}

// Rounding up would carry this NaN into the sign, and cutting it off would leave an infinity.
TEST(Bf16, ANanStaysANan) {
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7fffffffU)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace shiplap::kernels
