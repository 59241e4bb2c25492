#include "shiplap/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

namespace shiplap {
namespace {

using Names = std::span<const std::string_view>;

// A positive number as d.dd x 10^exponent, rounded once from all of its digits. The unit is chosen
// after rounding, so that 999.6 ms is printed as 1.00 s, not as 1000 ms.
struct Rounded {
  std::string digits;  // three
  int exponent;
};

Rounded three_digits(double value) {
  const std::string text = fmt::format("{:.2e}", value);  // "9.99e+02"
  return {.digits = text.substr(0, 1) + text.substr(2, 2), .exponent = std::stoi(text.substr(5))};
}

// Three digits with the point after the first, second or third.
std::string with_point(const std::string& digits, int before_point) {
  if (before_point == 3) return digits;
  const auto position = static_cast<std::size_t>(before_point);
  return digits.substr(0, position) + "." + digits.substr(position);
}

// `names` are 1000 apart; `smallest` is the power of ten of the first of them.
std::string positive_decimal(double value, Names names, int smallest) {
  const Rounded rounded = three_digits(value);
  const int above = rounded.exponent - smallest;
  if (above < 0) return fmt::format("{:#.3g} {}", value / std::pow(10.0, smallest), names.front());
  const auto step = static_cast<std::size_t>(above / 3);
  if (step < names.size()) {
    return fmt::format("{} {}", with_point(rounded.digits, above % 3 + 1), names[step]);
  }
  // Beyond the largest unit all digits before the point are shown.
  const int largest = smallest + 3 * static_cast<int>(names.size() - 1);
  return fmt::format("{:.0f} {}", value / std::pow(10.0, largest), names.back());
}

std::string decimal(double value, Names names, int smallest = 0) {
  const std::string_view unit = names[-smallest / 3];
  if (std::isnan(value)) return fmt::format("nan {}", unit);
  if (value == 0) return fmt::format("0 {}", unit);
  const std::string sign = value < 0 ? "-" : "";
  if (std::isinf(value)) return fmt::format("{}inf {}", sign, unit);
  return sign + positive_decimal(std::fabs(value), names, smallest);
}

// A number below 1024; 1000 to 1023 are printed with four digits.
std::string below_1024(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string to_string(Bytes bytes) {
  constexpr std::array<std::string_view, 6> kNames{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes.count > -1024 && bytes.count < 1024) return fmt::format("{} B", bytes.count);
  double value = std::fabs(static_cast<double>(bytes.count)) / 1024;
  std::size_t unit = 0;
  // From 1023.5 on, rounding would give 1024. Division by 1024 is exact.
  while (value >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{}{} {}", bytes.count < 0 ? "-" : "", below_1024(value), kNames[unit]);
}

std::string to_string(Seconds seconds) {
  constexpr std::array<std::string_view, 4> kNames{"ns", "us", "ms", "s"};
  return decimal(seconds.value, kNames, -9);
}

std::string to_string(Flops flops) {
  constexpr std::array<std::string_view, 9> kNames{"flop",  "kflop", "Mflop", "Gflop", "Tflop",
                                                   "Pflop", "Eflop", "Zflop", "Yflop"};
  return decimal(flops.count, kNames);
}

std::string to_string(Bandwidth bandwidth) {
  constexpr std::array<std::string_view, 7> kNames{"B/s",  "kB/s", "MB/s", "GB/s",
                                                   "TB/s", "PB/s", "EB/s"};
  return decimal(bandwidth.bytes_per_second, kNames);
}

std::string to_string(FlopRate rate) {
  constexpr std::array<std::string_view, 9> kNames{"flop/s",  "kflop/s", "Mflop/s",
                                                   "Gflop/s", "Tflop/s", "Pflop/s",
                                                   "Eflop/s", "Zflop/s", "Yflop/s"};
  return decimal(rate.flops_per_second, kNames);
}

std::string with_separators(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > first + 3;) {
    i -= 3;
    text.insert(i, 1, ',');
  }
  return text;
}

}  // namespace shiplap
