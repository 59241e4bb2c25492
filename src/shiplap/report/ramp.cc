#include "shiplap/report/ramp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numbers>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

struct Range {
  double from;
  double to;
  [[nodiscard]] double at(double part) const { return from + part * (to - from); }
};
constexpr Range kLightness{.from = 0.42, .to = 0.87};
constexpr Range kHue{.from = 285, .to = 115};  // degrees: indigo, blue, teal, green
constexpr double kChroma = 0.10;               // the most that sRGB has at every hue of the arc
constexpr double kTextTurns = 0.62;            // lightness

double part_of(int step) { return static_cast<double>(step) / (kRampSteps - 1); }

int channel(double linear) {
  const double bounded = std::clamp(linear, 0.0, 1.0);
  const double encoded =
      bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * std::pow(bounded, 1 / 2.4) - 0.055;
  return static_cast<int>(std::lround(255 * encoded));
}

std::string hexadecimal(double lightness, double hue_degrees) {
  const double hue = hue_degrees * std::numbers::pi / 180;
  const double a = kChroma * std::cos(hue);
  const double b = kChroma * std::sin(hue);
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lightness + 0.3963377774 * a + 0.2158037573 * b);
  const double m = cube(lightness - 0.1055613458 * a - 0.0638541728 * b);
  const double s = cube(lightness - 0.0894841775 * a - 1.2914855480 * b);
  return fmt::format("#{:02x}{:02x}{:02x}",
                     channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
                     channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
                     channel(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s));
}

}  // namespace

int ramp_step(std::int64_t index, std::int64_t count) {
  ensure(index >= 0 && index < count, "the index is below the count");
  return count == 1 ? 0 : static_cast<int>(index * (kRampSteps - 1) / (count - 1));
}

std::string ramp_colour(int step) {
  ensure(step >= 0 && step < kRampSteps, "a step is on the ramp");
  return hexadecimal(kLightness.at(part_of(step)), kHue.at(part_of(step)));
}

bool ramp_is_dark(int step) { return kLightness.at(part_of(step)) < kTextTurns; }

std::string ramp_style() {
  std::string rules;
  std::string colours;
  for (int step = 0; step < kRampSteps; ++step) {
    const std::string colour = ramp_colour(step);
    fmt::format_to(std::back_inserter(rules), ".r{}{{fill:{}}}\n", step, colour);
    colours += ',' + colour;
  }
  return fmt::format(":root{{--ramp:linear-gradient(to right{})}}\n{}", colours, rules);
}

}  // namespace shiplap::report
