#include "shiplap/base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>

#include "shiplap/base/random.h"

namespace shiplap {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;
constexpr std::int64_t kGiB = 1024 * kMiB;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class A, class B>
concept Addable = requires(A a, B b) { a + b; };
template <class A, class B>
concept Dividable = requires(A a, B b) { a / b; };

TEST(Units, DoNotMix) {
  static_assert(Addable<Bytes, Bytes> && Addable<Seconds, Seconds> && Addable<Flops, Flops>);
  static_assert(!Addable<Bytes, Seconds> && !Addable<Bytes, Flops> && !Addable<Bytes, int>);
  static_assert(!Dividable<Bytes, FlopRate> && !Dividable<Flops, Bandwidth>);
  static_assert(!std::is_convertible_v<double, Seconds>);
}

TEST(Units, ARateTimesItsTimeIsTheWhole) {
  static_assert(Bytes{800} / Bandwidth{400} == Seconds{2});
  static_assert(Bytes{800} / Seconds{2} == Bandwidth{400});
  static_assert(Flops{9} / FlopRate{3} == Seconds{3});
  static_assert(Flops{9} / Seconds{3} == FlopRate{3});
  static_assert(Seconds{3} / Seconds{2} == 1.5);
  static_assert(3 * Bytes{5} == Bytes{5} + Bytes{5} + Bytes{5});
  static_assert(3 * Seconds{5} - Seconds{5} == Seconds{10});
  static_assert(Bytes{1} < Bytes{2} && Seconds{1} < Seconds{2});
}

TEST(BytesToString, ShowsThreeDigits) {
  EXPECT_EQ(to_string(Bytes{0}), "0 B");
  EXPECT_EQ(to_string(Bytes{512}), "512 B");
  EXPECT_EQ(to_string(Bytes{1023}), "1023 B");
  EXPECT_EQ(to_string(Bytes{1024}), "1.00 KiB");
  EXPECT_EQ(to_string(Bytes{1536}), "1.50 KiB");
  EXPECT_EQ(to_string(Bytes{31 * kGiB + kGiB / 5}), "31.2 GiB");
  EXPECT_EQ(to_string(Bytes{-1536}), "-1.50 KiB");
}

TEST(BytesToString, RollsOverWhereRoundingReachesTheNextLength) {
  // 10234 B = 9.99414 KiB; 10235 B = 9.99512 KiB.
  EXPECT_EQ(to_string(Bytes{10234}), "9.99 KiB");
  EXPECT_EQ(to_string(Bytes{10235}), "10.0 KiB");
  // 102348 B = 99.9492 KiB; 102349 B = 99.9502 KiB.
  EXPECT_EQ(to_string(Bytes{102348}), "99.9 KiB");
  EXPECT_EQ(to_string(Bytes{102349}), "100 KiB");
  EXPECT_EQ(to_string(Bytes{1000 * kKiB}), "1000 KiB");
  EXPECT_EQ(to_string(Bytes{1023 * kKiB + 511}), "1023 KiB");
  EXPECT_EQ(to_string(Bytes{1023 * kKiB + 512}), "1.00 MiB");
  EXPECT_EQ(to_string(Bytes{1024 * kGiB - 1}), "1.00 TiB");
}

TEST(BytesToString, KnowsTheLargestAndTheSmallest) {
  EXPECT_EQ(to_string(Bytes{std::numeric_limits<std::int64_t>::max()}), "8.00 EiB");
  EXPECT_EQ(to_string(Bytes{std::numeric_limits<std::int64_t>::min()}), "-8.00 EiB");
}

TEST(SecondsToString, ShowsThreeDigits) {
  EXPECT_EQ(to_string(Seconds{12.4e-3}), "12.4 ms");
  EXPECT_EQ(to_string(Seconds{1.02}), "1.02 s");
  EXPECT_EQ(to_string(Seconds{3.5e-6}), "3.50 us");
  EXPECT_EQ(to_string(Seconds{250e-9}), "250 ns");
  EXPECT_EQ(to_string(Seconds{1e-9}), "1.00 ns");
  EXPECT_EQ(to_string(Seconds{1e-6}), "1.00 us");
  EXPECT_EQ(to_string(Seconds{1e-3}), "1.00 ms");
  EXPECT_EQ(to_string(Seconds{-12.4e-3}), "-12.4 ms");
}

TEST(SecondsToString, RollsOverWhereRoundingReachesTheNextLength) {
  EXPECT_EQ(to_string(Seconds{9.994e-3}), "9.99 ms");
  EXPECT_EQ(to_string(Seconds{9.996e-3}), "10.0 ms");
  EXPECT_EQ(to_string(Seconds{99.94e-3}), "99.9 ms");
  EXPECT_EQ(to_string(Seconds{99.96e-3}), "100 ms");
  EXPECT_EQ(to_string(Seconds{999.4e-3}), "999 ms");
  EXPECT_EQ(to_string(Seconds{999.6e-3}), "1.00 s");
  EXPECT_EQ(to_string(Seconds{999.6e-6}), "1.00 ms");
  EXPECT_EQ(to_string(Seconds{0.9996e-9}), "1.00 ns");
}

TEST(SecondsToString, ShowsAllWholeSecondsAndVeryShortTimes) {
  EXPECT_EQ(to_string(Seconds{999.4}), "999 s");
  EXPECT_EQ(to_string(Seconds{999.6}), "1000 s");
  EXPECT_EQ(to_string(Seconds{86400}), "86400 s");
  EXPECT_EQ(to_string(Seconds{0.5e-9}), "0.500 ns");
  EXPECT_EQ(to_string(Seconds{0}), "0 s");
}

TEST(SecondsToString, SaysSoWhenThereIsNoNumber) {
  EXPECT_EQ(to_string(Seconds{kInfinity}), "inf s");
  EXPECT_EQ(to_string(Seconds{-kInfinity}), "-inf s");
  EXPECT_EQ(to_string(Seconds{std::nan("")}), "nan s");
}

TEST(RatesToString, AreDecimal) {
  EXPECT_EQ(to_string(Bandwidth{398e9}), "398 GB/s");
  EXPECT_EQ(to_string(Bandwidth{999.5e6}), "1.00 GB/s");  // a tie, to even: 1000 MB/s
  EXPECT_EQ(to_string(Bandwidth{3.35e12}), "3.35 TB/s");
  EXPECT_EQ(to_string(Bandwidth{12}), "12.0 B/s");
  EXPECT_EQ(to_string(Bandwidth{0}), "0 B/s");
  EXPECT_EQ(to_string(FlopRate{989e12}), "989 Tflop/s");
  EXPECT_EQ(to_string(FlopRate{999.6e12}), "1.00 Pflop/s");
  EXPECT_EQ(to_string(Flops{4e9}), "4.00 Gflop");
  EXPECT_EQ(to_string(Flops{3.8e25}), "38.0 Yflop");
  EXPECT_EQ(to_string(Flops{1e28}), "10000 Yflop");
}

// For every value, the printed number is within half of its last digit. The C library's %g and the
// table of units below are a second way to the number.
double read_back(const std::string& text) {
  char* behind = nullptr;
  const double number = std::strtod(text.c_str(), &behind);
  const std::string name = *behind == ' ' ? behind + 1 : "nothing";
  if (name == "ns") return number * 1e-9;
  if (name == "us") return number * 1e-6;
  if (name == "ms") return number * 1e-3;
  EXPECT_EQ(name, "s");
  return number;
}

TEST(SecondsToString, IsNeverOffByMoreThanHalfOfTheThirdDigit) {
  Random random(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::pow(10.0, random.unit() * 14 - 9);
    const std::string text = to_string(Seconds{value});
    EXPECT_NEAR(read_back(text) / value, 1, 0.0050001) << text << " for " << value;
    char rounded[32];
    std::snprintf(rounded, sizeof rounded, "%.3g", value);
    if (value < 999) {
      EXPECT_NEAR(read_back(text) / std::strtod(rounded, nullptr), 1, 1e-12) << text;
    }
  }
}

TEST(WithSeparators, GroupsByThree) {
  EXPECT_EQ(with_separators(0), "0");
  EXPECT_EQ(with_separators(999), "999");
  EXPECT_EQ(with_separators(1000), "1,000");
  EXPECT_EQ(with_separators(131072), "131,072");
  EXPECT_EQ(with_separators(1234567), "1,234,567");
  EXPECT_EQ(with_separators(-999), "-999");
  EXPECT_EQ(with_separators(-1000), "-1,000");
  EXPECT_EQ(with_separators(std::numeric_limits<std::int64_t>::min()),
            "-9,223,372,036,854,775,808");
}

TEST(WithSeparators, LeavesTheNumberWhenTheyAreRemoved) {
  for (std::int64_t n = 1; n < std::numeric_limits<std::int64_t>::max() / 7; n = n * 7 + 1) {
    std::string text = with_separators(n);
    std::erase(text, ',');
    EXPECT_EQ(text, std::to_string(n));
  }
}

}  // namespace
}  // namespace shiplap
