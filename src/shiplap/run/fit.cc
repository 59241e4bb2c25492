#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "shiplap/run/fit_internal.h"

namespace shiplap::run {
namespace {

using Row = std::array<double, 4>;
using Equations = std::array<Row, 3>;

// The sums of squares, for the parts that are used; the others are 0.
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
    for (Row& row : equations) row[i] = 0;
    equations[i][i] = 1;
  }
  return equations;
}

// Scaled, for the parts differ by many orders of magnitude; then by elimination.
std::array<double, 3> solved(Equations equations) {
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

std::array<double, 3> fitted(std::span<const FitPoint> points) {
  std::array<bool, 3> uses{true, true, true};
  for (;;) {
    const std::array<double, 3> found = solved(equations_of(points, uses));
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
