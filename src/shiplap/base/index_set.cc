// Sets of indices as sorted, disjoint arithmetic progressions ("runs": begin, count, stride).
//
// Problem: sets of samples and shards are mostly blocks or round-robin selections, can have up to
// 2^31 - 1 indices, and are copied, united, intersected and compared often.
//
// Idea: store runs instead of indices. A block or a round-robin selection is one run, which the set
// holds inline without an allocation.
//
// Invariants:
// - Canonical form: equal sets have equal runs, so that == compares runs. A run is the longest
//   progression from the front; two indices that are not neighbours form a run only if no index
//   follows or the third continues them, so that {0, 4, 5, 6} is 0 and 4-6.
// - Runs are sorted and do not interleave: the next run begins after the last index of this one.
//
// Two runs intersect in a run again: a + s x = b + t y is a linear congruence, solved with the
// extended Euclidean algorithm (Knuth, TAOCP vol. 2, 4.5.2); its period is lcm(s, t). Operations
// work run by run and fall back to single indices where runs interleave in a way that takes more
// than comparing two of them.
#include "shiplap/base/index_set.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

using Run = IndexSet::Run;

// One less than the maximum, so that the size of the set of all indices fits into 32 bits.
constexpr std::int64_t kLastIndex = INT32_MAX - 1;
constexpr const char* kInRange = "indices are neither negative nor above 2^31 - 2";

// The canonical runs of sorted, distinct indices.
std::vector<Run> runs_of(std::span<const std::int32_t> sorted) {
  std::vector<Run> runs;
  std::size_t at = 0;
  while (at < sorted.size()) {
    Run run{.begin = sorted[at], .count = 1, .stride = 1};
    std::size_t next = at + 1;
    if (next < sorted.size()) {
      const std::int32_t stride = sorted[next] - sorted[at];
      while (next < sorted.size() && sorted[next] - sorted[next - 1] == stride) ++next;
      const bool pair_only = next - at == 2 && stride > 1 && next < sorted.size();
      if (pair_only) {
        next = at + 1;
      } else {
        run.stride = stride;
        run.count = static_cast<std::int32_t>(next - at);
      }
    }
    runs.push_back(run);
    at = next;
  }
  return runs;
}

// The canonical form of sorted runs that do not interleave. Repeatedly takes the longest run from
// the front.
std::vector<Run> canonical(std::vector<Run> rest) {
  std::vector<Run> runs;
  for (std::size_t at = 0; at < rest.size();) {
    Run run = rest[at++];
    if (run.count == 1) run.stride = 1;
    const auto absorb_first = [&](Run& next) {
      ++run.count;
      if (next.count == 1) {
        ++at;
        return;
      }
      next.begin += next.stride;
      --next.count;
    };
    if (run.count == 1 && at < rest.size()) {
      run.stride = rest[at].begin - run.begin;
      absorb_first(rest[at]);
    }
    while (run.count > 1 && at < rest.size() && rest[at].begin == run.last() + run.stride) {
      if (rest[at].count == 1 || rest[at].stride == run.stride) {
        run.count += rest[at++].count;
      } else {
        absorb_first(rest[at]);
      }
    }
    if (run.count == 2 && run.stride > 1 && at < rest.size()) {  // only the first of the two
      rest[--at] = {.begin = static_cast<std::int32_t>(run.last()), .count = 1, .stride = 1};
      run = {.begin = run.begin, .count = 1, .stride = 1};
    }
    runs.push_back(run);
  }
  return runs;
}

void append(std::vector<std::int32_t>& indices, const IndexSet& set) {
  for (const Run& run : set.runs()) {
    for (std::int32_t i = 0; i < run.count; ++i) indices.push_back(run.begin + i * run.stride);
  }
}

bool contains_index(const Run& run, std::int64_t index) {
  return index >= run.begin && index <= run.last() && (index - run.begin) % run.stride == 0;
}

// The least x >= 0 with step * x = distance modulo `modulus`. REQUIRES: step and modulus are
// coprime, all are below 2^31.
std::int64_t solve_congruence(std::int64_t step, std::int64_t distance, std::int64_t modulus) {
  std::int64_t inverse = 0;  // of step, by the extended Euclidean algorithm
  std::int64_t next = 1;
  std::int64_t rest = modulus;
  for (std::int64_t divisor = step % modulus; divisor != 0;) {
    const std::int64_t times = rest / divisor;
    inverse = std::exchange(next, inverse - times * next);
    rest = std::exchange(divisor, rest - times * divisor);
  }
  const std::int64_t result = (distance % modulus) * (inverse % modulus) % modulus;
  return result < 0 ? result + modulus : result;
}

// The intersection, which is a run with stride lcm(a.stride, b.stride). A count of 0: none.
Run intersection(const Run& a, const Run& b) {
  const std::int64_t divisor = std::gcd(a.stride, b.stride);
  const std::int64_t distance = std::int64_t{b.begin} - a.begin;
  if (distance % divisor != 0) return {};
  const std::int64_t period = a.stride / divisor * std::int64_t{b.stride};
  std::int64_t begin = a.begin + a.stride * solve_congruence(a.stride / divisor, distance / divisor,
                                                             b.stride / divisor);
  const std::int64_t from = std::max(a.begin, b.begin);
  if (begin < from) begin += (from - begin + period - 1) / period * period;
  const std::int64_t last = std::min(a.last(), b.last());
  if (begin > last) return {};
  const std::int64_t count = (last - begin) / period + 1;
  return {.begin = static_cast<std::int32_t>(begin),
          .count = static_cast<std::int32_t>(count),
          .stride = count == 1 ? 1 : static_cast<std::int32_t>(period)};
}

// Calls act(a, b) in order for pairs of runs whose ranges overlap. Stops if it returns false.
template <class Act>
void for_each_pair(std::span<const Run> a, std::span<const Run> b, const Act& act) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const bool meet = a[i].begin <= b[j].last() && b[j].begin <= a[i].last();
    if (meet && !act(a[i], b[j])) return;
    a[i].last() < b[j].last() ? ++i : ++j;
  }
}

// The union, run by run; empty if some runs interleave in a way that this does not handle.
std::vector<Run> unite_runs(std::span<const Run> a, std::span<const Run> b) {
  std::vector<Run> all;
  all.reserve(a.size() + b.size());
  std::ranges::merge(a, b, std::back_inserter(all), {}, &Run::begin, &Run::begin);
  std::size_t end = 1;
  for (std::size_t k = 1; k < all.size(); ++k) {
    Run& before = all[end - 1];
    const Run& next = all[k];
    if (next.begin > before.last()) {
      all[end++] = next;
      continue;
    }
    const Run both = intersection(before, next);
    if (both.count == next.count) continue;
    const bool extends = both.count > 0 && before.stride == next.stride;
    if (!extends) return {};
    before.count += static_cast<std::int32_t>((next.last() - before.last()) / before.stride);
  }
  all.resize(end);
  return canonical(std::move(all));
}

// Concatenates two runs if the second continues the first.
bool try_concatenate(const Run& a, const Run& b, Run& both) {
  const std::int64_t step = b.begin - a.last();
  if (step <= 0 || (a.count > 1 && step != a.stride) || (b.count > 1 && step != b.stride)) {
    return false;
  }
  both = {.begin = a.begin, .count = a.count + b.count, .stride = static_cast<std::int32_t>(step)};
  return true;
}

// Merges runs of one stride that form a round-robin distribution; a count of 0: they do not. If
// their first indices are d apart and fill a stride, they are every d-th index, provided that none
// ends more than a stride before the last index of all. REQUIRES: several, sorted by `begin`.
Run merge_interleaved(std::span<const Run> runs) {
  std::int64_t stride = 1;
  std::int64_t last = 0;
  std::int64_t total = 0;
  for (const Run& run : runs) {
    if (run.count > 1) stride = run.stride;
    last = std::max(last, run.last());
    total += run.count;
  }
  const std::int64_t distance = std::int64_t{runs[1].begin} - runs[0].begin;
  if (distance == 0 || distance * std::ssize(runs) != stride) return {};
  std::int64_t begin = runs[0].begin;
  for (const Run& run : runs) {
    const bool even = run.begin == begin && (run.count == 1 || run.stride == stride);
    if (!even || run.last() + stride <= last) return {};
    begin += distance;
  }
  return {.begin = runs[0].begin,
          .count = static_cast<std::int32_t>(total),
          .stride = static_cast<std::int32_t>(distance)};
}

}  // namespace

IndexSet::IndexSet(std::vector<std::int32_t> indices) {
  if (!std::ranges::is_sorted(indices)) std::sort(indices.begin(), indices.end());
  ensure(indices.empty() || (indices.front() >= 0 && indices.back() <= kLastIndex), kInRange);
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  *this = of_runs(runs_of(indices));
}

IndexSet IndexSet::range(std::int64_t begin, std::int64_t count, std::int64_t stride) {
  ensure(count >= 0 && stride >= 1, "a run of indices has a count and a stride");
  IndexSet set;
  if (count == 0) return set;
  // Compared by division, because the last index may overflow.
  const bool fits =
      begin >= 0 && begin <= kLastIndex && (count - 1) <= (kLastIndex - begin) / stride;
  ensure(fits, kInRange);
  set.first_ = {.begin = static_cast<std::int32_t>(begin),
                .count = static_cast<std::int32_t>(count),
                .stride = count == 1 ? 1 : static_cast<std::int32_t>(stride)};
  return set;
}

void IndexSet::copy_more(const IndexSet& other) {
  more_ = other.more_ ? std::make_unique<const std::vector<Run>>(*other.more_) : nullptr;
}

IndexSet IndexSet::of_runs(std::vector<Run> runs) {
  IndexSet set;
  if (runs.empty()) return set;
  set.first_ = runs.front();
  if (runs.size() > 1) set.more_ = std::make_unique<const std::vector<Run>>(std::move(runs));
  return set;
}

std::int64_t IndexSet::size_of_many() const {
  std::int64_t total = 0;
  for (const Run& run : runs()) total += run.count;
  return total;
}

bool IndexSet::contains(std::int64_t index) const {
  const std::span<const Run> all = runs();
  const auto behind = std::ranges::upper_bound(all, index, {}, &Run::begin);
  return behind != all.begin() && contains_index(*std::prev(behind), index);
}

std::vector<std::int32_t> IndexSet::indices() const {
  std::vector<std::int32_t> result;
  result.reserve(size());
  append(result, *this);
  return result;
}

bool IndexSet::overlaps(const IndexSet& other) const {
  if (empty() || other.empty()) return false;
  if (runs().back().last() < other.first_.begin || other.runs().back().last() < first_.begin) {
    return false;
  }
  bool found = false;
  for_each_pair(runs(), other.runs(), [&](const Run& a, const Run& b) {
    found = intersection(a, b).count > 0;
    return !found;
  });
  return found;
}

bool IndexSet::includes(const IndexSet& other) const {
  const std::int64_t size = other.size();
  if (size > this->size()) return false;
  std::int64_t both = 0;
  for_each_pair(runs(), other.runs(), [&](const Run& a, const Run& b) {
    both += intersection(a, b).count;
    return true;
  });
  return both == size;
}

IndexSet IndexSet::united(const IndexSet& other) const {
  if (other.empty()) return *this;
  if (empty()) return other;
  if (!more_ && !other.more_) {
    Run both;
    const bool in_order = first_.begin < other.first_.begin;
    const Run& before = in_order ? first_ : other.first_;
    const Run& behind = in_order ? other.first_ : first_;
    if (try_concatenate(before, behind, both)) return of_runs({both});
  }
  std::vector<Run> both = unite_runs(runs(), other.runs());
  if (!both.empty()) return of_runs(std::move(both));
  const std::array<const IndexSet*, 2> sets{this, &other};
  return unite(sets).set;
}

IndexSet IndexSet::intersected(const IndexSet& other) const {
  if (empty() || other.empty()) return {};
  if (!more_ && !other.more_) {
    const Run both = intersection(first_, other.first_);
    return both.count == 0 ? IndexSet() : of_runs({both});
  }
  std::vector<Run> both;
  for_each_pair(runs(), other.runs(), [&](const Run& a, const Run& b) {
    const Run here = intersection(a, b);
    if (here.count > 0) both.push_back(here);
    return true;
  });
  return of_runs(canonical(std::move(both)));
}

IndexSet IndexSet::without(const IndexSet& other) const {
  if (!overlaps(other)) return *this;
  std::vector<Run> left;
  bool by_runs = true;
  for (Run rest : runs()) {
    const auto first = std::ranges::lower_bound(other.runs(), rest.begin, {}, &Run::last);
    const auto near = std::span(first, other.runs().end());
    for_each_pair(std::span(&rest, 1), near, [&](const Run& a, const Run& b) {
      const Run cut = intersection(a, b);
      if (cut.count == 0) return true;
      by_runs = cut.count == 1 || cut.stride == a.stride;
      if (!by_runs) return false;
      const std::int32_t before = (cut.begin - a.begin) / a.stride;
      if (before > 0) left.push_back({a.begin, before, before == 1 ? 1 : a.stride});
      rest.count -= before + cut.count;
      if (rest.count > 0) rest.begin = cut.begin + cut.count * rest.stride;
      return rest.count > 0;
    });
    if (!by_runs) break;
    if (rest.count == 1) rest.stride = 1;
    if (rest.count > 0) left.push_back(rest);
  }
  if (by_runs) return of_runs(canonical(std::move(left)));
  std::vector<std::int32_t> rest = indices();
  std::erase_if(rest, [&](std::int32_t i) { return other.contains(i); });
  return IndexSet(std::move(rest));
}

IndexSet IndexSet::shifted(std::int64_t by) const {
  if (by == 0 || empty()) return *this;
  ensure(first_.begin + by >= 0 && runs().back().last() + by <= kLastIndex, kInRange);
  std::vector<Run> moved(runs().begin(), runs().end());
  for (Run& run : moved) run.begin += static_cast<std::int32_t>(by);
  return of_runs(std::move(moved));
}

bool IndexSet::equal_runs(const IndexSet& a, const IndexSet& b) {
  return std::ranges::equal(a.runs(), b.runs());
}

IndexSet one_run(std::span<const IndexSet* const> sets) {
  std::vector<Run> runs;
  for (const IndexSet* set : sets) {
    if (set->runs().size() != 1) return {};
    runs.push_back(set->runs().front());
  }
  if (runs.size() < 2) return {};
  std::ranges::sort(runs, {}, &Run::begin);
  Run all = runs.front();
  std::size_t k = 1;
  while (k < runs.size() && try_concatenate(all, runs[k], all)) ++k;
  if (k < runs.size()) all = merge_interleaved(runs);
  return IndexSet::range(all.begin, all.count, all.stride);
}

namespace {

// Counts the occurrences of each index: faster than sorting if the indices are dense.
Union unite_by_counting(std::span<const IndexSet* const> sets, std::int64_t largest) {
  std::vector<std::int32_t> times(largest + 1);
  for (const IndexSet* set : sets) {
    for (const Run& run : set->runs()) {
      for (std::int64_t i = run.begin; i <= run.last(); i += run.stride) {
        ++times[i];
      }
    }
  }
  Union result;
  std::vector<std::int32_t> all;
  for (std::int64_t i = 0; i <= largest; ++i) {
    const std::int32_t count = times[i];
    if (count > 0) all.push_back(static_cast<std::int32_t>(i));
    if (count > 1 && result.duplicate < 0) result.duplicate = i;
  }
  result.set = IndexSet(std::move(all));
  return result;
}

}  // namespace

Union unite(std::span<const IndexSet* const> sets) {
  if (sets.size() == 1) return {.set = *sets.front()};
  if (IndexSet run = one_run(sets); !run.empty()) return {.set = std::move(run)};
  std::int64_t total = 0;
  std::int64_t largest = -1;
  for (const IndexSet* set : sets) {
    if (set->empty()) continue;
    total += set->size();
    largest = std::max(largest, set->runs().back().last());
  }
  if (total > largest / 4) return unite_by_counting(sets, largest);
  std::vector<std::int32_t> all;
  for (const IndexSet* set : sets) append(all, *set);
  std::ranges::sort(all);
  const auto duplicate = std::ranges::adjacent_find(all);
  const std::int64_t index = duplicate == all.end() ? -1 : *duplicate;
  return {.set = IndexSet(std::move(all)), .duplicate = index};
}

std::string to_string(const IndexSet& set) {
  if (set.empty()) return "none";
  constexpr std::size_t kMaxRunsShown = 6;
  std::string text;
  const std::span<const Run> runs = set.runs();
  for (std::size_t i = 0; i < runs.size() && i < kMaxRunsShown; ++i) {
    const Run& run = runs[i];
    if (i > 0) text += i + 1 == runs.size() ? " and " : ", ";
    text += std::to_string(run.begin);
    if (run.count == 1) continue;
    if (run.stride == 1) {
      text += run.count == 2 ? ", " : "-";
    } else {
      text += ", " + std::to_string(run.begin + run.stride);
      if (run.count == 2) continue;
      text += run.count == 3 ? ", " : ", .. ";
    }
    text += std::to_string(run.last());
  }
  if (runs.size() > kMaxRunsShown) text += ", ..";
  return text;
}

}  // namespace shiplap
