// Symmetry reduction: ranks that one representative can stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "shiplap/plan/mesh.h"
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
  // Whether the group of a representative spans the k-th axis; if not, no member moves along it.
  [[nodiscard]] bool is_spanned(std::size_t k, const RankSet& group) const;
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

// A rank that a representative stands for.
struct Image {
  std::vector<std::int64_t> positions;  // on the axes of symmetry
  std::int64_t shift = 0;               // its rank, minus that of the representative
};
// The images that are compared with a representative: its neighbours along each axis, in their
// order, then the corners of the mesh. All expressions that depend on positions are affine, so
// their values lie between those at the corners: an expression without a value, or one that leaves
// its dimension, shows at a corner. Throws Asymmetric if there are more than six axes.
[[nodiscard]] std::vector<Image> images_of(const Symmetry& symmetry);

struct SymmetryOptions {
  // The work of a computation must be constant, not only affine, so that alike ranks take the same
  // time.
  bool same_work = false;
};
// Returns the axes along which ranks differ only in their values, by analysis of all expressions.
[[nodiscard]] Symmetry find_symmetry(const Plan& plan, const SymmetryOptions& options = {});

}  // namespace shiplap::plan
