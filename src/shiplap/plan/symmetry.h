// Symmetry reduction: ranks that one representative can stand for.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// The axes along which ranks are alike; the rank at position 0 is the representative. Without axes
// every rank is its own.
struct Symmetry {
  std::vector<AxisId> axes;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  [[nodiscard]] std::int32_t representative(std::int32_t rank) const;
  [[nodiscard]] bool is_representative(std::int32_t rank) const {
    return representative(rank) == rank;
  }
  [[nodiscard]] std::vector<std::int64_t> positions(std::int32_t rank) const;
  // How many ranks each representative stands for.
  [[nodiscard]] std::int64_t class_size() const;
  // Makes ranks at different positions of the axis represent themselves.
  void drop(AxisId axis);
  // Drops the axis with the fewest positions: that costs least. REQUIRES: there is one.
  void drop_smallest();
};

// Ranks that a representative should stand for differ from it.
struct Asymmetric : std::exception {
  AxisId axis;  // along which they differ; none: not known
  Asymmetric() = default;
  explicit Asymmetric(AxisId a) : axis(a) {}
};

struct SymmetryOptions {
  // The work of a computation must be constant, not only affine, so that alike ranks take the same
  // time.
  bool same_work = false;
};
// Returns the axes along which ranks differ only in their values, by analysis of all expressions.
[[nodiscard]] Symmetry find_symmetry(const Plan& plan, const SymmetryOptions& options = {});

}  // namespace shiplap::plan
