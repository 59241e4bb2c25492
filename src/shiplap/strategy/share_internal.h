// Puts the programs of many ranks together: those that differ in numbers only become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// The positions of ranks on the axes, looked up often.
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
  // A rank that differs from the first only on this axis, if there is one.
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

// Gathers programs in the order of ranks, each in plain numbers and with peers named by rank. Of
// ranks whose numbers are known to be affine, some are enough.
class ProgramSharing {
 public:
  explicit ProgramSharing(const plan::Mesh& mesh) : mesh_(mesh) {}

  void add(std::int32_t rank, plan::Program program);
  // Some of these ranks were added, and all of them have the program that those share. False if
  // those share none, or if expressions do not say all of its numbers: then no more can be added.
  [[nodiscard]] bool extend(const std::vector<std::int32_t>& added,
                            const std::vector<std::int32_t>& ranks);
  // Into `plan`, which has the mesh: its programs and the lists that they need.
  void finish(plan::Plan& plan);

 private:
  // Ranks whose programs have the same words.
  struct Kind {
    plan::Program program;  // that of the first rank
    std::uint64_t hash = 0;
    std::vector<std::int32_t> added;
    std::vector<std::int32_t> others;
    std::vector<std::int64_t> numbers;  // as many for each rank, rank after rank
    std::size_t count = 0;              // of numbers per rank
  };
  static void fit(const Kind& kind, plan::Program& program, plan::Plan& plan);
  [[nodiscard]] plan::Selector selector(const std::vector<std::int32_t>& ranks) const;

  plan::Mesh mesh_;
  std::vector<Kind> kinds_;
};

}  // namespace shiplap::strategy
