#include "shiplap/report/ramp.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

double linear(const std::string& colour, std::size_t channel) {
  const double value = std::stoi(colour.substr(1 + 2 * channel, 2), nullptr, 16) / 255.0;
  return value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
}

// The inverse, from a colour to its appearance: OKLab.
std::array<double, 3> look(const std::string& colour) {
  const double r = linear(colour, 0);
  const double g = linear(colour, 1);
  const double b = linear(colour, 2);
  const double l = std::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const double m = std::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const double s = std::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

double distance(int step, int other) {
  const auto a = look(ramp_colour(step));
  const auto b = look(ramp_colour(other));
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

TEST(Ramp, StepsLookEqual) {
  const double first = distance(0, 9);
  for (int step = 9; step + 9 < kRampSteps; step += 9) {
    EXPECT_NEAR(distance(step, step + 9), first, 0.1 * first) << step;
  }
}

TEST(Ramp, GetsLighterWithEveryStep) {
  for (int step = 0; step + 1 < kRampSteps; ++step) {
    EXPECT_LT(look(ramp_colour(step))[0], look(ramp_colour(step + 1))[0]) << step;
  }
}

TEST(Ramp, SpansAllStepsForAnyCount) {
  for (const std::int64_t count : {2, 3, 64, 65, 1'000'000}) {
    EXPECT_EQ(ramp_step(0, count), 0);
    EXPECT_EQ(ramp_step(count - 1, count), kRampSteps - 1);
  }
  EXPECT_EQ(ramp_step(0, 1), 0);
  EXPECT_THROW(static_cast<void>(ramp_step(3, 3)), InternalError);
}

}  // namespace
}  // namespace shiplap::report
