// The problem. Clock c shows t - x[c] at the true time t; x[0] = 0, the others are unknown. A
// precedence says t[e] + x[e] <= t[l] + x[l], so x[e] - x[l] <= t[l] - t[e]. Only the smallest
// bound between two clocks matters.
//
// The solution. In the graph with an edge l -> e of that length for each bound, the distance from 0
// to c is the largest offset that c can have, and minus the distance from c to 0 the smallest. All
// the largest together satisfy every bound (the triangle inequality), and so do all the smallest.
// The solutions are a convex set, so the middles of all intervals satisfy every bound too: choosing
// the middle of each clock by itself keeps causality between any two of them.
//
// Contradictions. A cycle of negative length means that no offsets satisfy all bounds: a clock ran
// faster than another, or was set meanwhile. Then all bounds are relaxed by the same time, doubled
// until there is a solution.
#include "shiplap/trace/align_clocks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "shiplap/base/error.h"

namespace shiplap::trace {
namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();

struct Edge {
  std::size_t from = 0;
  std::size_t to = 0;
  double length = 0;
};

// Bellman-Ford: the distances of all nodes from node 0, or none if a cycle has negative length.
std::optional<std::vector<double>> distances(const std::vector<Edge>& edges, std::size_t nodes) {
  std::vector<double> distance(nodes, kUnreached);
  distance[0] = 0;
  for (std::size_t round = 0; round <= nodes; ++round) {
    bool changed = false;
    for (const Edge& edge : edges) {
      const double length = distance[edge.from] + edge.length;
      if (!(length < distance[edge.to])) continue;
      distance[edge.to] = length;
      changed = true;
    }
    if (!changed) return distance;
  }
  return std::nullopt;
}

}  // namespace

void ClockBounds::add(const Precedence& known) {
  ensure(known.earlier.clock < clocks_ && known.later.clock < clocks_, "the clock exists");
  const double bound = (known.later.time - known.earlier.time).value;
  const auto [place, is_new] = bounds_.try_emplace({known.earlier.clock, known.later.clock}, bound);
  if (!is_new) place->second = std::min(place->second, bound);
}

ClockAlignment ClockBounds::align() const {
  constexpr double kSmallestViolation = 1e-12;
  for (double relaxed = 0;; relaxed = std::max(2 * relaxed, kSmallestViolation)) {
    std::vector<Edge> edges;
    std::vector<Edge> reversed;
    for (const auto& [clocks, bound] : bounds_) {
      edges.push_back({.from = clocks.second, .to = clocks.first, .length = bound + relaxed});
      reversed.push_back({.from = clocks.first, .to = clocks.second, .length = bound + relaxed});
    }
    const auto largest = distances(edges, clocks_);
    const auto smallest = distances(reversed, clocks_);  // times -1
    if (!largest || !smallest) continue;
    ClockAlignment result{.clocks = {}, .violation = {relaxed}};
    for (std::size_t k = 0; k < clocks_; ++k) {
      const double low = -(*smallest)[k];
      const double high = (*largest)[k];
      ensure(low > -kUnreached && high < kUnreached, "precedences connect all clocks");
      result.clocks.push_back(
          {.offset = {(low + high) / 2}, .uncertainty = {std::max(0.0, (high - low) / 2)}});
    }
    return result;
  }
}

}  // namespace shiplap::trace
