// A time as a sum of three parts, of which it is known how often each occurs.
#pragma once

#include <array>
#include <span>

namespace shiplap::run {

struct FitPoint {
  std::array<double, 3> parts{};  // how much of each
  double total = 0;               // more than 0
};

// What one of each takes: least squares of the relative errors. None is negative; what would be is
// taken as 0.
[[nodiscard]] std::array<double, 3> fitted(std::span<const FitPoint> points);

}  // namespace shiplap::run
