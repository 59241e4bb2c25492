// Merges the programs of many ranks: those that differ only in numbers become one parametric
// program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// The mesh coordinates of ranks, precomputed.
class Positions {
 public:
  Positions(const plan::Mesh& mesh, const std::vector<std::int32_t>& ranks)
      : axes_(mesh.axes.size()) {
    positions_.reserve(ranks.size() * axes_);
    for (const std::int32_t rank : ranks) {
      const std::vector<std::int64_t> all = mesh.positions(Rank(rank));
      positions_.insert(positions_.end(), all.begin(),
                        all.begin() + static_cast<std::ptrdiff_t>(axes_));
    }
  }
  [[nodiscard]] std::size_t axes() const { return axes_; }
  [[nodiscard]] std::size_t ranks() const { return axes_ == 0 ? 0 : positions_.size() / axes_; }
  [[nodiscard]] std::int64_t at(std::size_t rank, std::size_t axis) const {
    return positions_[rank * axes_ + axis];
  }
  // Returns a rank that differs from the first only on this axis, if there is one.
  [[nodiscard]] std::optional<std::size_t> neighbour(std::size_t axis) const {
    for (std::size_t r = 1; r < ranks(); ++r) {
      bool only = at(r, axis) != at(0, axis);
      for (std::size_t a = 0; a < axes_; ++a) only = only && (a == axis || at(r, a) == at(0, a));
      if (only) return r;
    }
    return std::nullopt;
  }

 private:
  std::size_t axes_;
  std::vector<std::int64_t> positions_;
};

// REQUIRES: programs are added in the order of ranks, with literal numbers and absolute peers. If
// the numbers of a class of ranks are known to be affine, a sample of them is enough (extrapolate).
class ProgramDeduplicator {
 public:
  explicit ProgramDeduplicator(const plan::Mesh& mesh) : mesh_(mesh) {}

  void add(std::int32_t rank, plan::Program program);
  // Extends the program of the `added` ranks to all of `ranks`. REQUIRES: the numbers of `ranks`
  // are affine. Returns false if the added ranks have different programs, or if a number needs a
  // list; then no more programs may be added.
  [[nodiscard]] bool extrapolate(const std::vector<std::int32_t>& added,
                                 const std::vector<std::int32_t>& ranks);
  // Writes the programs, and the lists they need, to `plan`. REQUIRES: `plan` has the mesh.
  void finish(plan::Plan& plan);

 private:
  // Ranks whose programs are equal except for numbers.
  struct ProgramClass {
    plan::Program program;  // of the first rank
    std::uint64_t hash = 0;
    std::vector<std::int32_t> added;
    std::vector<std::int32_t> extrapolated;
    std::vector<std::int64_t> numbers;  // `count` for each rank, rank-major
    std::size_t count = 0;              // numbers per rank
  };
  static void fit_numbers(const ProgramClass& program_class, plan::Program& program,
                          plan::Plan& plan);
  [[nodiscard]] plan::Selector selector(const std::vector<std::int32_t>& ranks) const;

  plan::Mesh mesh_;
  std::vector<ProgramClass> classes_;
};

}  // namespace shiplap::strategy
