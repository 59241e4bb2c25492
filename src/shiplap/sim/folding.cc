// Folding: alike ranks are replayed once.
//
// Problem: a step of 16,384 ranks has 79 million operations, but only the stages of the pipeline do
// different ones. Most of the time of a simulation was spent expanding and linking the others.
//
// Idea: plan/symmetry.h finds the axes along which ranks do the same operations. Moving all ranks
// along such an axis maps the linked program onto itself: an automorphism of the graph of
// operations and dependencies. If it also keeps the duration of every operation, then each
// operation and its image start and complete at the same times, because times are the unique
// solution of equations that the automorphism maps onto themselves. So one rank of each orbit is
// replayed, and a collective begins when those of its members that are representatives have started
// it.
//
// The durations of computations, copies and exchanges are compared with the templates
// (plan/alike.cc). Those of messages and collectives depend on where the ranks are: groups of six
// ranks on nodes of eight devices lie differently from group to group. This file compares the
// placement of every group, and of every two ranks that exchange messages, with that of its
// representative. Where one differs, ranks along that axis are replayed each.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/cost/collective.h"
#include "shiplap/sim/folding_internal.h"

namespace shiplap::sim {
namespace {

using plan::Symmetry;

// Ways to move along axes of a symmetry: all but staying.
class Shifts {
 public:
  Shifts(const Symmetry& symmetry, std::vector<std::size_t> axes)
      : symmetry_(symmetry), axes_(std::move(axes)), steps_(axes_.size()) {}

  // Moves on. Returns false after the last.
  bool next() {
    for (std::size_t k = axes_.size(); k-- > 0;) {
      shift_ += symmetry_.strides[axes_[k]];
      if (++steps_[k] < symmetry_.sizes[axes_[k]]) return true;
      shift_ -= steps_[k] * symmetry_.strides[axes_[k]];
      steps_[k] = 0;
    }
    return false;
  }
  [[nodiscard]] std::int64_t shift() const { return shift_; }
  // The first axis along which it moves.
  [[nodiscard]] plan::AxisId axis() const {
    const auto moved = std::ranges::find_if(steps_, [](std::int64_t steps) { return steps > 0; });
    return symmetry_.axes[axes_[moved - steps_.begin()]];
  }

 private:
  const Symmetry& symmetry_;
  std::vector<std::size_t> axes_;
  std::vector<std::int64_t> steps_;
  std::int64_t shift_ = 0;
};

void compare_groups(const LinkedProgram& linked, const hardware::System& system) {
  for (const GroupCalls& group : linked.matching.groups) {
    throw_if_cancelled();
    const cost::RankSpan here = cost::rank_span(group.ranks, system);
    Shifts shifts(linked.symmetry, axes_across(group.ranks, linked.symmetry));
    while (shifts.next()) {
      const cost::RankSpan there = cost::rank_span(group.ranks, system, shifts.shift());
      if (!cost::is_same_placement(system, here, there)) throw plan::Asymmetric(shifts.axis());
    }
  }
}

void compare_messages(const LinkedProgram& linked, const hardware::System& system) {
  std::vector<std::size_t> all;
  for (std::size_t k = 0; k < linked.symmetry.axes.size(); ++k) all.push_back(k);
  std::set<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const plan::MessageQueue& queue : linked.matching.queues) {
    pairs.insert(std::minmax(queue.from, queue.to));
  }
  for (const auto& [lowest, highest] : pairs) {
    throw_if_cancelled();
    const auto network = [&, low = lowest, high = highest](std::int64_t shift) {
      return &cost::network_for(system,
                                {.ranks = 2, .lowest = low + shift, .highest = high + shift});
    };
    Shifts shifts(linked.symmetry, all);
    while (shifts.next()) {
      if (network(shifts.shift()) != network(0)) throw plan::Asymmetric(shifts.axis());
    }
  }
}

}  // namespace

std::vector<std::size_t> axes_across(const plan::RankSet& group, const Symmetry& symmetry) {
  std::vector<std::size_t> result;
  for (std::size_t k = 0; k < symmetry.axes.size(); ++k) {
    if (!symmetry.is_spanned(k, group)) result.push_back(k);
  }
  return result;
}

void throw_if_misplaced(const LinkedProgram& linked, const hardware::System& system) {
  if (linked.symmetry.axes.empty()) return;
  compare_groups(linked, system);
  compare_messages(linked, system);
}

}  // namespace shiplap::sim
