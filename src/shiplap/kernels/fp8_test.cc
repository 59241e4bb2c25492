// The reference searches the table of all encodings, whose values are computed with the formula of
// the standard in double.
#include "shiplap/kernels/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "shiplap/base/random.h"

namespace shiplap::kernels {
namespace {

constexpr DType kFormats[] = {DType::fp8_e4m3, DType::fp8_e5m2};

struct Layout {
  int mantissa_bits;
  int bias;
};

Layout layout(DType format) { return format == DType::fp8_e4m3 ? Layout{3, 7} : Layout{2, 15}; }

// The number of a code, whatever it would mean if the format had no special ones.
double formula(DType format, unsigned code) {
  const auto [mantissa_bits, bias] = layout(format);
  const int exponent = static_cast<int>((code & 0x7f) >> mantissa_bits);
  const auto mantissa = static_cast<double>(code & ((1U << mantissa_bits) - 1));
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

unsigned largest_code(DType format) { return format == DType::fp8_e4m3 ? 0x7e : 0x7b; }

float value(DType format, unsigned code) {
  const auto bits = static_cast<std::uint8_t>(code);
  return format == DType::fp8_e4m3 ? to_float(E4m3{bits}) : to_float(E5m2{bits});
}

unsigned rounded(DType format, float number) {
  return format == DType::fp8_e4m3 ? to_e4m3(number).bits : to_e5m2(number).bits;
}

// The nearest of all finite codes of the same sign; of two, the even one.
unsigned searched(DType format, float number) {
  // Beyond the largest, doubles could not tell the distances apart.
  const double magnitude =
      std::min(std::abs(static_cast<double>(number)), formula(format, largest_code(format)));
  unsigned best = 0;
  double least = HUGE_VAL;
  for (unsigned code = 0; code <= largest_code(format); ++code) {
    const double distance = std::abs(formula(format, code) - magnitude);
    if (distance > least || (distance == least && code % 2 == 1)) continue;
    best = code;
    least = distance;
  }
  return best | (std::signbit(number) ? 0x80U : 0U);
}

void expect_nearest(DType format, float number) {
  ASSERT_EQ(rounded(format, number), searched(format, number))
      << name(format) << " of " << number << ", bits " << std::bit_cast<std::uint32_t>(number);
}

void expect_nearest_around(DType format, float number) {
  for (const float near :
       {std::nextafter(number, -HUGE_VALF), number, std::nextafter(number, HUGE_VALF)}) {
    expect_nearest(format, near);
    expect_nearest(format, -near);
  }
}

TEST(DType, EveryFiniteCodeIsTheNumberOfTheFormulaAndSurvivesTheWayThroughFloat) {
  for (const DType format : kFormats) {
    for (unsigned code = 0; code < 256; ++code) {
      if ((code & 0x7f) > largest_code(format)) continue;
      const float number = value(format, code);
      EXPECT_EQ(static_cast<double>(number), formula(format, code)) << code;
      EXPECT_EQ(std::signbit(number), (code & 0x80) != 0) << code;
      EXPECT_EQ(rounded(format, number), code);
    }
  }
}

TEST(DType, SpecialCodesAreThoseOfTheStandard) {
  for (const unsigned sign : {0U, 0x80U}) {
    EXPECT_TRUE(std::isnan(value(DType::fp8_e4m3, 0x7f | sign)));
    EXPECT_EQ(rounded(DType::fp8_e4m3, value(DType::fp8_e4m3, 0x7f | sign)), 0x7f | sign);
    EXPECT_TRUE(std::isinf(value(DType::fp8_e5m2, 0x7c | sign)));
    EXPECT_EQ(std::signbit(value(DType::fp8_e5m2, 0x7c | sign)), sign != 0);
    for (const unsigned code : {0x7dU, 0x7eU, 0x7fU}) {
      EXPECT_TRUE(std::isnan(value(DType::fp8_e5m2, code | sign)));
      EXPECT_EQ(rounded(DType::fp8_e5m2, value(DType::fp8_e5m2, code | sign)), 0x7e | sign);
    }
  }
}

// Each number, the middle between it and the next, what lies between, and the floats next to all.
TEST(DType, WhatLiesBetweenGoesToTheNearestAndTiesToTheEvenOne) {
  for (const DType format : kFormats) {
    for (unsigned code = 0; code < largest_code(format); ++code) {
      const float low = value(format, code);
      const float high = value(format, code + 1);
      for (const float part : {0.0F, 0.25F, 0.5F, 0.75F, 1.0F}) {
        expect_nearest_around(format, low + (high - low) * part);
      }
    }
  }
}

TEST(DType, AnyFloatGoesToTheNearest) {
  Random random(1);
  for (int i = 0; i < 50000; ++i) {
    const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
    if (std::isnan(any)) continue;
    const auto usual =
        static_cast<float>(std::ldexp(random.unit(), static_cast<int>(random.between(-20, 20))));
    for (const DType format : kFormats) {
      expect_nearest(format, any);
      expect_nearest(format, usual);
    }
  }
}

TEST(DType, WhatIsTooLargeBecomesTheLargest) {
  for (const DType format : kFormats) {
    const float most = fp8_max(format);
    EXPECT_EQ(static_cast<double>(most), formula(format, largest_code(format)));
    for (const float number : {most, std::nextafter(most, HUGE_VALF), 1.04F * most, 1.5F * most,
                               std::numeric_limits<float>::max(), HUGE_VALF}) {
      EXPECT_EQ(rounded(format, number), largest_code(format));
      EXPECT_EQ(rounded(format, -number), largest_code(format) | 0x80);
    }
  }
}

TEST(DType, ANanStaysANanOfItsSign) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0x7fffffffU}) {
    EXPECT_EQ(to_e4m3(std::bit_cast<float>(bits)).bits, 0x7f);
    EXPECT_EQ(to_e4m3(std::bit_cast<float>(bits | 0x80000000)).bits, 0xff);
    EXPECT_EQ(to_e5m2(std::bit_cast<float>(bits)).bits, 0x7e);
    EXPECT_EQ(to_e5m2(std::bit_cast<float>(bits | 0x80000000)).bits, 0xfe);
  }
}

TEST(DType, E8m0IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(to_float(E8m0{static_cast<std::uint8_t>(code)})),
              std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(to_float(E8m0{0xff})));
}

// What tests elsewhere derive their bounds from.
TEST(DType, RoundingChangesANumberByNoMoreThanTheSteps) {
  for (const DType format : kFormats) {
    EXPECT_EQ(min_subnormal(format), formula(format, 1));
    double most_relative = 0;
    for (unsigned code = 0; code < largest_code(format); ++code) {
      const double low = formula(format, code);
      const double high = formula(format, code + 1);
      const double middle = (low + high) / 2;
      const double change = middle - low;
      EXPECT_LE(change, std::max(unit_roundoff(format) * middle, min_subnormal(format) / 2));
      if (low >= formula(format, 1U << layout(format).mantissa_bits)) {
        most_relative = std::max(most_relative, change / low);
      }
    }
    EXPECT_EQ(most_relative, unit_roundoff(format));
  }
}

static_assert(to_e4m3(0.3F).bits == 0x2a && to_e5m2(0.3F).bits == 0x35);
static_assert(to_float(E4m3{0x2a}) == 0.3125F && to_float(E5m2{0x35}) == 0.3125F);

}  // namespace
}  // namespace shiplap::kernels
