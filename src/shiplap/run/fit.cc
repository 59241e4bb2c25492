#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "shiplap/run/fit_internal.h"

namespace shiplap::run {
namespace {

using EquationRow = std::array<double, 4>;
using Equations = std::array<EquationRow, 3>;

// The normal equations, for the parts that are used; the others are fixed at 0.
Equations equations_of(std::span<const FitPoint> points, const std::array<bool, 3>& uses) {
  Equations equations{};
  for (const FitPoint& point : points) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double here = point.parts[i] / point.total;
      for (std::size_t j = 0; j < 3; ++j) equations[i][j] += here * point.parts[j] / point.total;
      equations[i][3] += here;
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (uses[i]) continue;
    equations[i] = {};
    for (EquationRow& row : equations) row[i] = 0;
    equations[i][i] = 1;
  }
  return equations;
}

// Gauss-Jordan elimination after scaling: the parts differ by many orders of magnitude.
std::array<double, 3> solve(Equations equations) {
  std::array<double, 3> scale{};
  for (std::size_t i = 0; i < 3; ++i) scale[i] = 1 / std::sqrt(equations[i][i]);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) equations[i][j] *= scale[i] * scale[j];
    equations[i][3] *= scale[i];
  }
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t k = 0; k < 3; ++k) {
      if (k == i) continue;
      const double factor = equations[k][i] / equations[i][i];
      for (std::size_t j = 0; j < 4; ++j) equations[k][j] -= factor * equations[i][j];
    }
  }
  std::array<double, 3> found{};
  for (std::size_t i = 0; i < 3; ++i) found[i] = equations[i][3] / equations[i][i] * scale[i];
  return found;
}

}  // namespace

std::array<double, 3> fit_costs(std::span<const FitPoint> points) {
  std::array<bool, 3> uses{true, true, true};
  for (;;) {
    const std::array<double, 3> found = solve(equations_of(points, uses));
    bool is_done = true;
    for (std::size_t i = 0; i < 3; ++i) {
      if (!uses[i] || found[i] >= 0) continue;
      uses[i] = false;
      is_done = false;
    }
    if (is_done) return found;
  }
}

}  // namespace shiplap::run
