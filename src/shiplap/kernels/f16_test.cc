// The compiler's own _Float16 is the second witness.
#include "shiplap/kernels/f16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "shiplap/base/random.h"

namespace shiplap::kernels {
namespace {

std::uint16_t by_compiler(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

void expect_as_compiler(float value) {
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(to_float(to_f16(value)))) << std::bit_cast<std::uint32_t>(value);
  } else {
    ASSERT_EQ(to_f16(value).bits, by_compiler(value)) << std::bit_cast<std::uint32_t>(value);
  }
}

TEST(F16, EveryPatternIsTheCompilersNumberAndSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 value{static_cast<std::uint16_t>(bits)};
    const auto witness = static_cast<float>(std::bit_cast<_Float16>(value.bits));
    if (std::isnan(witness)) {
      // Signalling NaNs become quiet.
      EXPECT_TRUE(std::isnan(to_float(value)));
      EXPECT_EQ(to_f16(to_float(value)).bits, bits | 0x200);
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(to_float(value)),
                std::bit_cast<std::uint32_t>(witness));
      ASSERT_EQ(to_f16(to_float(value)), value);
    }
  }
}

// Each number, the middle between it and the next, and the floats on both sides of these.
TEST(F16, WhatLiesBetweenGoesToTheNearestAndTiesToTheEvenOne) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = to_float(F16{static_cast<std::uint16_t>(bits)});
    const float high =
        bits == 0x7bff ? 65536.0F : to_float(F16{static_cast<std::uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    for (const float value : {low, middle}) {
      for (const float near : {std::nextafter(value, -1.0F), value, std::nextafter(value, 1e9F)}) {
        expect_as_compiler(near);
        expect_as_compiler(-near);
      }
    }
  }
}

TEST(F16, AnyFloatGoesWhereTheCompilerPutsIt) {
  Random random(1);
  for (int i = 0; i < 300000; ++i) {
    expect_as_compiler(std::bit_cast<float>(static_cast<std::uint32_t>(random.next())));
  }
}

TEST(F16, WhatIsTooLargeBecomesInfinite) {
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_f16(-HUGE_VALF).bits, 0xfc00);
}

TEST(F16, ANanStaysANan) {
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(to_float(to_f16(std::bit_cast<float>(0xffffffffU)))));
}

}  // namespace
}  // namespace shiplap::kernels
