// Fits a linear cost model of three terms to measured times.
#pragma once

#include <array>
#include <span>

namespace shiplap::run {

struct FitPoint {
  std::array<double, 3> parts{};  // amount of each term
  double total = 0;               // measured time, > 0
};

// Returns the cost per unit of each term: least squares of relative errors, with negative costs
// clamped to 0.
[[nodiscard]] std::array<double, 3> fit_costs(std::span<const FitPoint> points);

}  // namespace shiplap::run
