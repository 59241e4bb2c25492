// Who runs another program?
//
// The problem. If the ranks of a group make different calls, the group shows a contradiction, but
// not who is wrong: in a group of two it is one against one, and a rank that skips one of ten equal
// calls shows up much later, in another group.
//
// The idea. Training is SPMD: data-parallel replicas, and the members of a tensor-parallel group,
// run the same program, and every step is like the one before it. So a rank is compared with all
// ranks that make the same kinds of calls (its cohort), across groups; and a rank without peers,
// such as a pipeline stage without replicas, with its own earlier steps. The first difference from
// most of the cohort is where its program diverged, even if the calls still matched there.
//
// Programs are sequences of keys (progress_internal.h). They are aligned at the first call that
// both dumps have, since recorders evict old calls, and then followed side by side. At a difference
// the continuation that agrees for longest decides whether a call was skipped, added, swapped or
// changed.
//
// Rejected: edit distance over whole programs (quadratic, and later differences are consequences);
// call stacks as part of keys (ranks may make the same call from different lines).
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "shiplap/postmortem/comparison_internal.h"

namespace shiplap::postmortem {
namespace {

using Units = std::span<const Unit>;

constexpr std::size_t kLookahead = 24;  // units
constexpr std::size_t kMaxShift = 6;    // skipped or added in a row
constexpr std::size_t kMaxCohorts = 256;
constexpr std::size_t kMaxShifts = 64;
constexpr std::size_t kMaxReferences = 5;

// How many units agree from here on, and whether this reaches the end of the first program.
struct Agreement {
  std::size_t count = 0;
  bool to_the_end = false;
  [[nodiscard]] std::size_t score() const { return to_the_end ? kLookahead + count : count; }
};

Agreement agreement(Units x, std::size_t i, Units y, std::size_t j) {
  std::size_t count = 0;
  while (count < kLookahead && i + count < x.size() && j + count < y.size() &&
         x[i + count].key == y[j + count].key) {
    ++count;
  }
  const bool ends = i + count >= x.size() || (j + count >= y.size() && count > 0);
  return {.count = count, .to_the_end = ends};
}

struct Difference {
  std::size_t at = 0;        // in x
  std::size_t expected = 0;  // in y
  Divergence divergence = Divergence::none;
};

// The first difference of x from y, from (i, j) on. None if one is the beginning of the other.
std::optional<Difference> first_difference(Units x, std::size_t i, Units y, std::size_t j) {
  while (i < x.size() && j < y.size() && x[i].key == y[j].key) {
    ++i;
    ++j;
  }
  if (i == x.size() || j == y.size()) return std::nullopt;
  Difference best{.at = i, .expected = j, .divergence = Divergence::operation};
  std::size_t score = agreement(x, i + 1, y, j + 1).score();
  if (i + 1 == x.size() || j + 1 == y.size()) score = 0;  // nothing follows that could agree
  const auto consider = [&](Divergence divergence, const Agreement& found, std::size_t penalty) {
    if (found.count == 0 || found.score() <= score + penalty) return;
    score = found.score();
    best.divergence = divergence;
  };
  for (std::size_t k = 1; k <= kMaxShift; ++k) {
    if (j + k < y.size()) consider(Divergence::skipped, agreement(x, i, y, j + k), k - 1);
    if (i + k < x.size()) consider(Divergence::extra, agreement(x, i + k, y, j), k - 1);
  }
  const bool crossed =
      j + 1 < y.size() && x[i].key == y[j + 1].key && i + 1 < x.size() && x[i + 1].key == y[j].key;
  if (crossed) best.divergence = Divergence::order;
  return best;
}

// Two programs side by side: unit i of one is unit i + shift of the other.
using Shift = std::int64_t;

// How many units agree from the beginning of the overlap on.
std::size_t run_length(Units x, Units y, Shift shift) {
  std::size_t i = at(std::max<Shift>(0, -shift));
  std::size_t j = at(std::max<Shift>(0, shift));
  std::size_t count = 0;
  while (i < x.size() && j < y.size() && x[i].key == y[j].key) ++i, ++j, ++count;
  return count;
}

// The shifts that calls with the same number on groups of the same role suggest.
std::vector<Shift> shifts_by_number(const Progress& progress, std::int32_t a, std::int32_t b) {
  struct Hash {
    std::size_t operator()(const std::pair<std::uint64_t, std::int64_t>& place) const {
      return place.first ^ (static_cast<std::uint64_t>(place.second) * 0x9e3779b97f4a7c15U);
    }
  };
  std::unordered_map<std::pair<std::uint64_t, std::int64_t>, std::size_t, Hash> places;
  const Units x = progress.units(a);
  const Units y = progress.units(b);
  for (std::size_t j = 0; j < y.size(); ++j) {
    if (!y[j].is_p2p) places.try_emplace({progress.role(b, y[j].group), y[j].sequence}, j);
  }
  std::vector<Shift> shifts;
  for (std::size_t i = 0; i < x.size() && shifts.size() < kMaxShifts; ++i) {
    if (x[i].is_p2p) continue;
    const auto found = places.find({progress.role(a, x[i].group), x[i].sequence});
    if (found == places.end() || y[found->second].key != x[i].key) continue;
    const Shift shift = static_cast<Shift>(found->second) - static_cast<Shift>(i);
    if (std::ranges::find(shifts, shift) == shifts.end()) shifts.push_back(shift);
  }
  return shifts;
}

// The shifts under which the first unit of one has an equal one in the other.
std::vector<Shift> shifts_by_key(Units x, Units y) {
  std::vector<Shift> shifts;
  for (std::size_t j = 0; j < y.size() && shifts.size() < kMaxShifts; ++j) {
    if (!x.empty() && y[j].key == x.front().key) shifts.push_back(static_cast<Shift>(j));
  }
  for (std::size_t i = 1; i < x.size() && shifts.size() < 2 * kMaxShifts; ++i) {
    if (!y.empty() && x[i].key == y.front().key) shifts.push_back(-static_cast<Shift>(i));
  }
  return shifts;
}

// The shift under which two programs agree for longest. Both begin where their recorder evicted the
// calls before, so no unit is known to be the same; but under a wrong shift they differ soon, or,
// if it is off by whole steps, overlap less.
std::optional<Shift> best_shift(const Progress& progress, std::int32_t a, std::int32_t b) {
  if (!progress.dump(a)->evicted && !progress.dump(b)->evicted) return 0;
  const Units x = progress.units(a);
  const Units y = progress.units(b);
  std::optional<Shift> best;
  std::size_t longest = 0;
  const auto consider = [&](const std::vector<Shift>& shifts) {
    for (const Shift shift : shifts) {
      const std::size_t length = run_length(x, y, shift);
      if (length <= longest) continue;
      longest = length;
      best = shift;
    }
  };
  consider(shifts_by_number(progress, a, b));
  const std::size_t shorter = std::min(x.size(), y.size());
  if (2 * longest < shorter) consider(shifts_by_key(x, y));
  return 4 * longest < shorter && longest < kLookahead ? std::nullopt : best;
}

struct Comparison {
  bool comparable = false;
  std::optional<Difference> difference;
};

Comparison compare(const Progress& progress, std::int32_t rank, std::int32_t reference) {
  const std::optional<Shift> shift = best_shift(progress, rank, reference);
  if (!shift) return {};
  return {true, first_difference(progress.units(rank), at(std::max<Shift>(0, -*shift)),
                                 progress.units(reference), at(std::max<Shift>(0, *shift)))};
}

// Ranks that make the same kinds of calls.
class Cohorts {
 public:
  explicit Cohorts(const Progress& progress) {
    std::map<Kinds, std::vector<std::int32_t>> by_kinds;
    for (std::int32_t rank = 0; rank < progress.world(); ++rank) {
      Kinds kinds;
      for (const Unit& unit : progress.units(rank)) {
        (unit.is_p2p ? kinds.messages : kinds.collectives).push_back(unit.key);
      }
      make_set(kinds.messages);
      make_set(kinds.collectives);
      if (!progress.units(rank).empty()) by_kinds[std::move(kinds)].push_back(rank);
    }
    std::vector<std::pair<const Kinds*, std::vector<std::int32_t>*>> sets;
    for (auto& [kinds, ranks] : by_kinds) sets.emplace_back(&kinds, &ranks);
    std::ranges::stable_sort(sets, {}, [](const auto& set) { return -std::ssize(*set.second); });
    std::vector<const Kinds*> heads;
    for (const auto& [kinds, ranks] : sets) {
      std::size_t best = heads.size();
      double most = kAlikeCollectives;
      for (std::size_t k = 0; k < heads.size() && k < kMaxCohorts; ++k) {
        if (similarity(kinds->messages, heads[k]->messages) < kAlikeMessages) continue;
        const double alike = similarity(kinds->collectives, heads[k]->collectives);
        if (alike > most) {
          most = alike;
          best = k;
        }
      }
      if (best == heads.size()) {
        heads.push_back(kinds);
        cohorts_.emplace_back();
      }
      cohorts_[best].insert(cohorts_[best].end(), ranks->begin(), ranks->end());
    }
    for (std::vector<std::int32_t>& cohort : cohorts_) std::ranges::sort(cohort);
  }

  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& all() const { return cohorts_; }

 private:
  // The first stage of a pipeline sends and receives in one direction, the others in two: a
  // similarity of 0.75.
  static constexpr double kAlikeMessages = 0.8;
  static constexpr double kAlikeCollectives = 0.5;

  using Keys = std::vector<std::uint64_t>;
  struct Kinds {
    Keys messages;
    Keys collectives;
    auto operator<=>(const Kinds&) const = default;
  };

  static void make_set(Keys& keys) {
    std::ranges::sort(keys);
    const auto repeated = std::ranges::unique(keys);
    keys.erase(repeated.begin(), repeated.end());
  }

  // Common keys over the smaller set and over both: a rank that is behind has fewer.
  static double similarity(const Keys& a, const Keys& b) {
    if (a.empty() || b.empty()) return a.empty() == b.empty() ? 1 : 0;
    std::size_t common = 0;
    for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
      if (*i == *j) {
        ++common;
        ++i;
        ++j;
      } else if (*i < *j) {
        ++i;
      } else {
        ++j;
      }
    }
    const auto smaller = static_cast<double>(std::min(a.size(), b.size()));
    const auto both = static_cast<double>(a.size() + b.size() - common);
    return 0.5 * (static_cast<double>(common) / smaller + static_cast<double>(common) / both);
  }

  std::vector<std::vector<std::int32_t>> cohorts_;
};

class CohortComparison {
 public:
  CohortComparison(const Progress& progress, const std::vector<std::int32_t>& cohort)
      : progress_(progress), cohort_(cohort) {}

  // The deviations, and the ranks that have no calls in common with the others.
  struct Result {
    std::vector<Deviation> deviations;
    std::vector<std::int32_t> incomparable;
  };

  Result run() {
    // The reference that fewest ranks deviate from, among some with much history.
    std::vector<std::int32_t> references = cohort_;
    std::ranges::stable_sort(references, {},
                             [&](std::int32_t rank) { return -std::ssize(progress_.units(rank)); });
    if (references.size() > kMaxReferences) {
      // The longest, and others spread over the cohort.
      for (std::size_t k = 1; k < kMaxReferences; ++k) {
        references[k] = cohort_[k * (cohort_.size() - 1) / (kMaxReferences - 1)];
      }
      references.resize(kMaxReferences);
    }
    Result best;
    std::size_t least = cohort_.size() + 1;
    for (const std::int32_t reference : references) {
      Result found = against(reference);
      const std::size_t others = found.deviations.size() + found.incomparable.size();
      if (others >= least) continue;
      best = std::move(found);
      least = others;
      if (others == 0) break;
    }
    const std::int64_t deviating = std::ssize(best.deviations);
    const auto agreeing = static_cast<std::int64_t>(cohort_.size() - least);
    for (Deviation& deviation : best.deviations) {
      deviation.agreeing = agreeing > deviating ? agreeing : 0;
    }
    return best;
  }

 private:
  Result against(std::int32_t reference) {
    Result result;
    for (const std::int32_t rank : cohort_) {
      if (rank == reference) continue;
      const Comparison comparison = compare(progress_, rank, reference);
      if (!comparison.comparable) result.incomparable.push_back(rank);
      if (!comparison.difference) continue;
      const Difference& difference = *comparison.difference;
      Deviation deviation{.rank = rank,
                          .unit = static_cast<std::int32_t>(difference.at),
                          .reference = reference,
                          .expected = static_cast<std::int32_t>(difference.expected),
                          .divergence = difference.divergence};
      if (deviation.divergence == Divergence::operation) {
        deviation.divergence =
            postmortem::difference(progress_, rank, deviation.unit, reference, deviation.expected);
      }
      result.deviations.push_back(deviation);
    }
    return result;
  }

  const Progress& progress_;
  const std::vector<std::int32_t>& cohort_;
};

// A rank is compared with its own earlier steps. The period is the smallest shift under which all
// but the last step agrees; there must be two whole steps.
std::optional<Deviation> compare_with_itself(const Progress& progress, std::int32_t rank) {
  const Units x = progress.units(rank);
  for (std::size_t period = 2; 5 * period / 2 <= x.size(); ++period) {
    std::size_t same = period;
    while (same < x.size() && x[same].key == x[same - period].key) ++same;
    if (same == x.size()) return std::nullopt;
    if (same < x.size() - period || same < 2 * period) continue;
    // A shift within a loop of equal calls is no step: a step has more than one kind of call.
    std::set<std::uint64_t> kinds;
    for (std::size_t k = 0; k < period; ++k) kinds.insert(x[k].key);
    if (kinds.size() < 2) continue;
    const std::optional<Difference> difference =
        first_difference(x.subspan(period), same - period, x.first(same), same - period);
    if (!difference) return std::nullopt;
    Deviation deviation{.rank = rank,
                        .unit = static_cast<std::int32_t>(difference->at + period),
                        .reference = rank,
                        .expected = static_cast<std::int32_t>(difference->expected),
                        .divergence = difference->divergence,
                        .agreeing = 1};
    if (deviation.divergence == Divergence::operation) {
      deviation.divergence =
          postmortem::difference(progress, rank, deviation.unit, rank, deviation.expected);
    }
    return deviation;
  }
  return std::nullopt;
}

}  // namespace

Divergence difference(const Progress& progress, std::int32_t rank, std::int32_t unit,
                      std::int32_t reference, std::int32_t expected) {
  const Unit& a = progress.units(rank)[at(unit)];
  const Unit& b = progress.units(reference)[at(expected)];
  const dump::Call& mine = progress.call(rank, a);
  const dump::Call& theirs = progress.call(reference, b);
  const auto& signatures = progress.job().signatures;
  const bool same_operation =
      signatures[mine.signature].operation == signatures[theirs.signature].operation;
  const bool same_group = progress.role(rank, a.group) == progress.role(reference, b.group);
  if (!same_group) return same_operation ? Divergence::group : Divergence::operation;
  const Divergence found = contradiction(signatures[mine.signature], signatures[theirs.signature]);
  if (found != Divergence::none) return found;
  return mine.peer != theirs.peer ? Divergence::peer : Divergence::operation;
}

namespace {

class DeviationSearch {
 public:
  explicit DeviationSearch(const Progress& progress) : progress_(progress) {}

  std::vector<Deviation> run() {
    const Cohorts cohorts(progress_);
    for (const std::vector<std::int32_t>& cohort : cohorts.all()) search(cohort);
    std::vector<Deviation> result;
    for (const auto& [rank, deviation] : found_) result.push_back(deviation);
    return result;
  }

 private:
  // Ranks without common calls, such as stages of a pipeline, are searched apart; and stages that
  // make the same calls in different orders.
  void search(const std::vector<std::int32_t>& cohort) {
    if (cohort.size() < 3) {
      search_stages(cohort);
      return;
    }
    const CohortComparison::Result result = CohortComparison(progress_, cohort).run();
    if (!result.incomparable.empty()) {
      std::vector<std::int32_t> rest;
      std::ranges::set_difference(cohort, result.incomparable, std::back_inserter(rest));
      search(rest);
      search(result.incomparable);
    } else if (result.deviations.size() < 2) {
      for (const Deviation& deviation : result.deviations)
        found_.emplace(deviation.rank, deviation);
    } else {
      search_stages(cohort);
    }
  }

  void search_stages(const std::vector<std::int32_t>& cohort) {
    std::map<std::uint64_t, std::vector<std::int32_t>> stages;
    for (const std::int32_t rank : cohort) stages[progress_.message_place(rank)].push_back(rank);
    for (const auto& [place, ranks] : stages) search_stage(ranks);
  }

  void search_stage(const std::vector<std::int32_t>& ranks) {
    if (ranks.size() == 1) {
      compare_alone(ranks);
      return;
    }
    const std::vector<Deviation> deviations = CohortComparison(progress_, ranks).run().deviations;
    const bool undecided = !deviations.empty() && deviations.front().agreeing == 0;
    if (undecided && compare_alone(ranks)) return;
    for (const Deviation& deviation : deviations) {
      found_.emplace(deviation.rank, deviation);
      if (undecided) add_mirrored(deviation);
    }
  }

  // One against one: either may be wrong.
  void add_mirrored(Deviation deviation) {
    std::swap(deviation.rank, deviation.reference);
    std::swap(deviation.unit, deviation.expected);
    if (deviation.divergence == Divergence::skipped) {
      deviation.divergence = Divergence::extra;
    } else if (deviation.divergence == Divergence::extra) {
      deviation.divergence = Divergence::skipped;
    }
    found_.emplace(deviation.rank, deviation);
  }

  // Returns whether any rank does something that its earlier steps do not do.
  bool compare_alone(const std::vector<std::int32_t>& ranks) {
    bool any = false;
    for (const std::int32_t rank : ranks) {
      const std::optional<Deviation> alone = compare_with_itself(progress_, rank);
      if (!alone) continue;
      found_.emplace(rank, *alone);
      any = true;
    }
    return any;
  }

  const Progress& progress_;
  std::map<std::int32_t, Deviation> found_;
};

}  // namespace

std::vector<Deviation> find_deviations(const Progress& progress) {
  return DeviationSearch(progress).run();
}

}  // namespace shiplap::postmortem
