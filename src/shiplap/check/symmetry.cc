// Slopes: how far each coordinate of a representative moves per step along the axes of symmetry.
//
// Problem: plan/symmetry.cc finds the axes along which ranks differ only in coordinates, and check
// checks the rank at position 0 of them as the representative. It must carry with each coordinate
// its slope.
//
// Idea: the neighbour along each axis is expanded, and the difference of each run's begin is its
// slope. Then all corners of the mesh are expanded and must agree. As all expressions that depend
// on positions are affine, their values lie between those at the corners, so an expression without
// a value, or a run that leaves its dimension, would show at a corner.
//
// This is conservative, and sets with different slopes are never compared: every operation on boxes
// and runs throws Asymmetric if its answer would depend on the rank, and check.cc starts again with
// one axis less. tests/check/symmetry_test.cc checks plans both ways.
#include <algorithm>
#include <numeric>
#include <variant>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxAxes = 6;  // 64 corners

bool same(const plan::flat::Region& a, const plan::flat::Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count && a.listed == b.listed;
}

// Compares the expansions of two ranks: the same operations, peers shifted with the rank, and the
// same groups or their translations. Throws Asymmetric if they differ otherwise.
class RankComparison {
 public:
  RankComparison(const plan::RankProgram& here, const plan::RankProgram& there)
      : here_(here), there_(there), shift_(there.rank.value - here.rank.value) {}

  void compare() const {
    require(here_.operations.size() == there_.operations.size() &&
            here_.runs.size() == there_.runs.size() &&
            here_.accesses.size() == there_.accesses.size() &&
            here_.dependencies == there_.dependencies &&
            here_.groups.size() == there_.groups.size() &&
            here_.given.size() == there_.given.size() && here_.goal.size() == there_.goal.size());
    for (std::size_t k = 0; k < here_.operations.size(); ++k) {
      throw_if_cancelled();
      const plan::flat::Operation& a = here_.operations[k];
      const plan::flat::Operation& b = there_.operations[k];
      require(a.source == b.source && a.group == b.group && a.root == b.root && a.tag == b.tag &&
              same(a.from, b.from) && same(a.to, b.to));
      require(!a.peer.exists() || b.peer.value == a.peer.value + shift_);
      // In place, the piece of the region differs by rank of the group.
      const auto* collective = std::get_if<plan::Collective>(&a.source->action);
      const bool in_place =
          collective != nullptr && has_pieces(collective->kind) && same(a.from, a.to);
      require(!in_place || !(here_.groups[a.group] == there_.groups[b.group]));
    }
    for (std::size_t k = 0; k < here_.accesses.size(); ++k) {
      require(same(here_.accesses[k].region, there_.accesses[k].region));
    }
  }

  // By how much the ranks of a group move.
  [[nodiscard]] std::int64_t group_shift(std::size_t k) const {
    const plan::flat::Group& a = here_.groups[k];
    const plan::flat::Group& b = there_.groups[k];
    require(a.channel == b.channel && a.ranks.size() == b.ranks.size());
    const std::int64_t shift = b.ranks[0].value - a.ranks[0].value;
    if (shift == 0) require(a.ranks == b.ranks);
    for (std::int64_t m = 0; m < a.ranks.size() && shift != 0; ++m) {
      require(b.ranks[m].value == a.ranks[m].value + shift);
    }
    return shift;
  }

 private:
  static void require(bool holds) {
    if (!holds) throw Asymmetric();
  }
  const plan::RankProgram& here_;
  const plan::RankProgram& there_;
  std::int64_t shift_;
};

}  // namespace

// The neighbour along each axis, and all corners; the rank itself is one of them.
std::int64_t expansions_of(const Symmetry& symmetry) {
  const std::size_t axes = std::min(symmetry.axes.size(), kMaxAxes);
  return static_cast<std::int64_t>(axes + (std::size_t{1} << axes));
}

// The neighbour along each axis determines the slopes; all corners must agree with them.
std::vector<SlopeId> slopes_of(const plan::RankProgram& program, const Symmetry& symmetry,
                               Slopes& slopes) {
  const std::size_t axes = symmetry.axes.size();
  if (axes == 0) return {};
  if (axes > kMaxAxes) throw Asymmetric();
  using Positions = std::vector<std::int64_t>;
  std::vector<Positions> of_runs(program.runs.size(), Positions(axes));
  std::vector<Positions> of_groups(program.groups.size(), Positions(axes));
  plan::RankProgram there;
  const auto visit = [&](const Positions& positions, const auto& run, const auto& group) {
    const std::int64_t shift = std::inner_product(positions.begin(), positions.end(),
                                                  symmetry.strides.begin(), std::int64_t{0});
    const Rank rank(static_cast<std::int32_t>(program.rank.value + shift));
    there = plan::expand(*program.plan, rank, program.program, {}, std::move(there));
    const RankComparison comparison(program, there);
    comparison.compare();
    for (std::size_t k = 0; k < of_runs.size(); ++k) {
      run(of_runs[k], there.runs[k].begin - program.runs[k].begin);
    }
    for (std::size_t k = 0; k < of_groups.size(); ++k) {
      group(of_groups[k], comparison.group_shift(k));
    }
  };
  for (std::size_t axis = 0; axis < axes; ++axis) {
    Positions positions(axes);
    positions[axis] = 1;
    const auto set_slope = [&](Positions& slope, std::int64_t moved) { slope[axis] = moved; };
    const auto set_group_slope = [&](Positions& slope, std::int64_t moved) {
      if (moved != 0 && moved != symmetry.strides[axis]) throw Asymmetric();
      slope[axis] = moved;
    };
    visit(positions, set_slope, set_group_slope);
  }
  for (std::size_t corner = 1; corner < std::size_t{1} << axes; ++corner) {
    Positions positions(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if ((corner >> axis & 1U) != 0) positions[axis] = symmetry.sizes[axis] - 1;
    }
    const auto check_slope = [&](const Positions& slope, std::int64_t moved) {
      const std::int64_t expected =
          std::inner_product(positions.begin(), positions.end(), slope.begin(), std::int64_t{0});
      if (moved != expected) throw Asymmetric();
    };
    visit(positions, check_slope, check_slope);
  }
  std::vector<SlopeId> result;
  result.reserve(of_runs.size());
  for (Positions& slope : of_runs) result.push_back(slopes.intern(std::move(slope)));
  return result;
}

}  // namespace shiplap::check
