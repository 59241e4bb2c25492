// Slopes: how far each coordinate of a representative moves per step along the axes of symmetry.
//
// Problem: plan/symmetry.cc finds the axes along which ranks differ only in coordinates, and check
// checks the rank at position 0 of them as the representative. It must carry with each coordinate
// its slope.
//
// Idea: the neighbour along each axis is expanded, and the difference of each run's begin is its
// slope. Then all corners of the mesh are expanded and must agree (plan::images_of).
//
// This is conservative, and sets with different slopes are never compared: every operation on boxes
// and runs throws Asymmetric if its answer would depend on the rank, and check.cc starts again with
// one axis less. tests/check/symmetry_test.cc checks plans both ways.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

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

// Slopes of many things, one after the other: most have few axes, and a step has millions of them.
class SlopeTable {
 public:
  SlopeTable(std::size_t things, std::size_t axes) : axes_(axes), slopes_(things * axes) {}

  [[nodiscard]] std::size_t size() const { return slopes_.size() / axes_; }
  [[nodiscard]] std::span<std::int64_t> operator[](std::size_t k) {
    return std::span(slopes_).subspan(k * axes_, axes_);
  }
  // REQUIRES: `moved` is by how much it moves to these positions. Throws Asymmetric if the slope
  // says otherwise.
  void check(std::size_t k, std::span<const std::int64_t> positions, std::int64_t moved) {
    const std::span<const std::int64_t> slope = (*this)[k];
    const std::int64_t expected =
        std::inner_product(positions.begin(), positions.end(), slope.begin(), std::int64_t{0});
    if (moved != expected) throw Asymmetric();
  }
  [[nodiscard]] std::vector<SlopeId> intern(Slopes& slopes) {
    std::vector<SlopeId> result;
    result.reserve(size());
    for (std::size_t k = 0; k < size(); ++k) {
      const std::span<const std::int64_t> slope = (*this)[k];
      const bool repeats = k > 0 && std::ranges::equal(slope, (*this)[k - 1]);
      result.push_back(repeats
                           ? result.back()
                           : slopes.intern(std::vector<std::int64_t>(slope.begin(), slope.end())));
    }
    return result;
  }

 private:
  std::size_t axes_;
  std::vector<std::int64_t> slopes_;
};

}  // namespace

// The neighbour along each axis determines the slopes; all corners must agree with them.
std::vector<SlopeId> slopes_of(const plan::RankProgram& program, const Symmetry& symmetry,
                               std::span<const plan::Image> images, Slopes& slopes) {
  const std::size_t axes = symmetry.axes.size();
  if (axes == 0) return {};
  SlopeTable of_runs(program.runs.size(), axes);
  SlopeTable of_groups(program.groups.size(), axes);
  plan::RankProgram there;
  for (std::size_t k = 0; k < images.size(); ++k) {
    const std::vector<std::int64_t>& positions = images[k].positions;
    const Rank rank(static_cast<std::int32_t>(program.rank.value + images[k].shift));
    there = plan::expand(*program.plan, rank, program.program, {}, std::move(there));
    const RankComparison comparison(program, there);
    comparison.compare();
    const bool is_neighbour = k < axes;
    for (std::size_t run = 0; run < of_runs.size(); ++run) {
      const std::int64_t moved = there.runs[run].begin - program.runs[run].begin;
      if (is_neighbour) of_runs[run][k] = moved;
      if (!is_neighbour) of_runs.check(run, positions, moved);
    }
    for (std::size_t group = 0; group < of_groups.size(); ++group) {
      const std::int64_t moved = comparison.group_shift(group);
      if (is_neighbour && moved != 0 && moved != symmetry.strides[k]) throw Asymmetric();
      if (is_neighbour) of_groups[group][k] = moved;
      if (!is_neighbour) of_groups.check(group, positions, moved);
    }
  }
  return of_runs.intern(slopes);
}

}  // namespace shiplap::check
