#include "shiplap/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shiplap::plan {
namespace {

bool contains(const std::vector<PositionRange>& ranges, std::int64_t position) {
  return std::ranges::any_of(ranges, [position](const PositionRange& range) {
    return range.first <= position && position <= range.last;
  });
}

// Sorted and disjoint, so that a position is found by binary search and visited once.
std::vector<PositionRange> normalized(std::vector<PositionRange> ranges) {
  std::ranges::sort(ranges, {}, &PositionRange::first);
  std::vector<PositionRange> result;
  for (const PositionRange& range : ranges) {
    if (result.empty() || range.first > result.back().last) {
      result.push_back(range);
    } else {
      result.back().last = std::max(result.back().last, range.last);
    }
  }
  return result;
}

bool normalized_contains(const std::vector<PositionRange>& ranges, std::int64_t position) {
  const auto after = std::ranges::upper_bound(ranges, position, {}, &PositionRange::first);
  return after != ranges.begin() && position <= (after - 1)->last;
}

std::int64_t positions_in(const std::vector<PositionRange>& ranges) {
  std::int64_t sum = 0;
  for (const PositionRange& range : ranges) sum += range.last - range.first + 1;
  return sum;
}

// Enumerates the ranks of a selector without visiting the others. If there are terms on aliases or
// ranks, the most selective one leads: its positions are enumerated and fix some axes. On the other
// axes the positions that their terms allow are enumerated.
class SelectedRanks {
 public:
  SelectedRanks(Selector selector, const Mesh& mesh)
      : mesh_(mesh), terms_(std::move(selector.terms)), fixed_(mesh.axes.size(), -1) {
    for (SelectorTerm& term : terms_) term.positions = normalized(std::move(term.positions));
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) allowed_.push_back(on(axis));
    choose_lead();
  }

  template <class Visit>
  void for_each(const Visit& visit) {
    if (lead_ == nullptr) return descend(0, 0, visit);
    for (const PositionRange& range : lead_->positions) {
      for (std::int64_t position = range.first; position <= range.last; ++position) {
        fix_axes(position);
        descend(0, 0, visit);
      }
    }
  }

 private:
  [[nodiscard]] bool is_plain(const SelectorTerm& term) const {
    return term.axis.exists() && !mesh_.is_alias(term.axis);
  }
  [[nodiscard]] std::int64_t size(const SelectorTerm& term) const {
    return term.axis.exists() ? mesh_.size(term.axis) : mesh_.ranks();
  }

  // The positions on an axis that all of its terms allow.
  [[nodiscard]] std::vector<PositionRange> on(std::size_t axis) const {
    std::vector<PositionRange> allowed = {{0, mesh_.axes[axis].size - 1}};
    for (const SelectorTerm& term : terms_) {
      if (term.axis == AxisId(axis)) allowed = common(allowed, term.positions);
    }
    return allowed;
  }

  static std::vector<PositionRange> common(const std::vector<PositionRange>& a,
                                           const std::vector<PositionRange>& b) {
    std::vector<PositionRange> result;
    for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      const PositionRange both{std::max(a[i].first, b[j].first), std::min(a[i].last, b[j].last)};
      if (both.first <= both.last) result.push_back(both);
      a[i].last < b[j].last ? ++i : ++j;
    }
    return result;
  }

  void choose_lead() {
    double narrowest = 2;
    for (const SelectorTerm& term : terms_) {
      if (is_plain(term)) continue;
      const double share =
          static_cast<double>(positions_in(term.positions)) / static_cast<double>(size(term));
      if (share < narrowest) lead_ = &term;
      narrowest = std::min(narrowest, share);
      ++not_plain_;
    }
    if (lead_ == nullptr) return;
    lead_axes_ = lead_->axis.exists() ? mesh_.axes_of(lead_->axis) : all_axes();
  }

  void fix_axes(std::int64_t position) {
    for (std::size_t k = lead_axes_.size(); k-- > 0;) {
      const std::int64_t count = mesh_.axes[lead_axes_[k]].size;
      fixed_[lead_axes_[k].index()] = position % count;
      position /= count;
    }
  }

  [[nodiscard]] std::vector<AxisId> all_axes() const {
    std::vector<AxisId> axes;
    for (std::size_t k = 0; k < mesh_.axes.size(); ++k) axes.emplace_back(k);
    return axes;
  }

  template <class Visit>
  void descend(std::size_t axis, std::int64_t rank, const Visit& visit) const {
    if (axis == allowed_.size())
      return visit_if_selected(Rank(static_cast<std::int32_t>(rank)), visit);
    const std::int64_t above = rank * mesh_.axes[axis].size;
    if (fixed_[axis] >= 0) {
      if (!normalized_contains(allowed_[axis], fixed_[axis])) return;
      return descend(axis + 1, above + fixed_[axis], visit);
    }
    for (const PositionRange& range : allowed_[axis]) {
      for (std::int64_t position = range.first; position <= range.last; ++position) {
        descend(axis + 1, above + position, visit);
      }
    }
  }

  template <class Visit>
  void visit_if_selected(Rank rank, const Visit& visit) const {
    if (not_plain_ < 2 || other_terms_hold(rank)) visit(rank);
  }

  [[nodiscard]] bool other_terms_hold(Rank rank) const {
    const std::vector<std::int64_t> positions = mesh_.positions(rank);
    return std::ranges::all_of(terms_, [&](const SelectorTerm& term) {
      return normalized_contains(term.positions,
                                 term.axis.exists() ? positions[term.axis.index()] : rank.value);
    });
  }

  const Mesh& mesh_;
  std::vector<SelectorTerm> terms_;
  std::vector<std::vector<PositionRange>> allowed_;  // by axis
  std::vector<std::int64_t> fixed_;  // by axis: the position set by the leading term, or -1
  const SelectorTerm* lead_ = nullptr;
  std::vector<AxisId> lead_axes_;
  int not_plain_ = 0;
};

// Bounds the time if many programs claim a million ranks each.
constexpr std::size_t kMaxProblems = 20;
constexpr std::int32_t kUnassigned = -2;
constexpr std::int32_t kSpare = -1;

class Assigner {
 public:
  explicit Assigner(const Plan& plan) : plan_(plan) {
    result_.program_of.assign(plan.mesh.ranks(), ProgramId(kUnassigned));
  }

  Assignment assign() && {
    for (std::size_t k = 0; k < plan_.programs.size(); ++k)
      claim(plan_.programs[k].on, ProgramId(k));
    for (const Selector& spare : plan_.spares) claim(spare, ProgramId(kSpare));
    report_unassigned();
    return std::move(result_);
  }

 private:
  void claim(const Selector& selector, ProgramId program) {
    if (result_.problems.size() >= kMaxProblems) return;
    bool reported = false;
    SelectedRanks(selector, plan_.mesh).for_each([&](Rank rank) {
      ProgramId& owner = result_.program_of[rank];
      if (owner.value == kUnassigned) {
        owner = program;
      } else if (!std::exchange(reported, true)) {
        report_twice(rank, owner, program);
        result_.problems.back().where.line = selector.origin.line;
      }
    });
  }

  [[nodiscard]] std::string describe(ProgramId program) const {
    return program.exists() ? fmt::format("program `{}`", plan_.programs[program].name)
                            : std::string("`spare`");
  }

  void report_twice(Rank rank, ProgramId first, ProgramId second) {
    result_.problems.push_back({.code = "D108",
                                .where = {.rank = rank.value},
                                .what = fmt::format("rank {} is claimed by {} and by {}",
                                                    rank.value, describe(first), describe(second)),
                                .why = "every rank runs exactly one program or is spare",
                                .help = "change `on` so that the two do not overlap"});
  }

  void report_unassigned() {
    std::int64_t unassigned = 0;
    std::int64_t first = -1;
    for (std::size_t rank = 0; rank < result_.program_of.size(); ++rank) {
      if (result_.program_of[rank].value != kUnassigned) continue;
      if (unassigned++ == 0) first = static_cast<std::int64_t>(rank);
      result_.program_of[rank] = ProgramId(kSpare);
    }
    if (unassigned == 0) return;
    const std::string subject = unassigned == 1 ? fmt::format("rank {} has", first)
                                                : fmt::format("{} ranks have", unassigned);
    result_.problems.push_back(
        {.code = "D108",
         .where = {.rank = first},
         .what = subject + " no program",
         .why = "every rank runs exactly one program or is spare",
         .help = "widen the `on` of a program, or add `spare on " + position_of(first) + "`"});
  }

  [[nodiscard]] std::string position_of(std::int64_t rank) const {
    const auto positions = plan_.mesh.positions(Rank(static_cast<std::int32_t>(rank)));
    std::string text;
    for (std::size_t k = 0; k < plan_.mesh.axes.size(); ++k) {
      text += fmt::format("{}{}={}", k == 0 ? "" : " ", plan_.mesh.axes[k].name, positions[k]);
    }
    return text;
  }

  const Plan& plan_;
  Assignment result_;
};

}  // namespace

bool selects(const Selector& selector, const Mesh& mesh, Rank rank) {
  if (selector.terms.empty()) return true;
  const std::vector<std::int64_t> positions = mesh.positions(rank);
  return std::ranges::all_of(selector.terms, [&](const SelectorTerm& term) {
    return contains(term.positions, term.axis.exists() ? positions[term.axis.index()] : rank.value);
  });
}

Where where_of(const Plan& plan, const Operation& operation) {
  if (operation.at.source.exists()) {
    const Source& source = plan.sources[operation.at.source];
    return {.file = source.file, .line = operation.at.line, .function = source.function};
  }
  return {.line = operation.origin.line,
          .column = operation.origin.column,
          .length = operation.origin.length};
}

Assignment assign_programs(const Plan& plan) { return Assigner(plan).assign(); }

}  // namespace shiplap::plan
