// Sums as sets of contributions.
//
// A partial sum is the set of contributions that it has: points of the tensor's sum dimensions
// (sample, key, ..). Adding two partial sums is the union of disjoint sets; a common point is a
// contribution that is counted twice (D742), and a goal states the set that must be complete.
//
// A set is a list of disjoint boxes, each a product of one index set per dimension, and is
// hash-consed as contents are (content.cc). The union is memoized by the pair of ids, because the
// same two sums meet on many ranks. Boxes that differ in one dimension are joined, so sums that are
// blocks or have a constant stride stay one box. The list is not canonical: one set can be cut into
// boxes in several ways, so same() compares the points if the ids differ.
//
// Masks can cut a sum into many boxes, and comparing them is quadratic. So the cost of all
// comparisons is counted, and beyond a limit the check ends with D632.
#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/sums_internal.h"

namespace shiplap::check {
namespace {

// Slopes are searched linearly, and a run has 16 bits for one.
constexpr std::size_t kMaxSlopes = 1024;
constexpr std::size_t kMaxSumBoxes = 1000;  // of one sum
// The cost of comparing boxes, in units of about 10 ns: for each pair of boxes, and for each run
// after the first of a dimension.
constexpr std::int64_t kPairCost = 1;
constexpr std::int64_t kRunCost = 8;
constexpr std::int64_t kMaxCost = 240'000'000;

std::uint64_t hash_of(const Boxes& boxes) {
  std::uint64_t hash = boxes.size();
  for (const Box& box : boxes) {
    for (const BoxSide& part : box) {
      hash = hash_combine(hash, part.slope);
      for (const IndexSet::Run& run : part.set.runs()) {
        hash = hash_combine(hash_combine(hash_combine(hash, run.begin), run.count), run.stride);
      }
    }
  }
  return hash;
}

// Sums of rows with one cell and with several cells have different dimensions and are disjoint.
bool comparable(const Box& a, const Box& b) { return a.size() == b.size(); }

// The cost of comparing two boxes: most differ in their first dimension already.
std::int64_t cost_of(const Box& a, const Box& b) {
  if (a.empty() || !comparable(a, b)) return kPairCost;
  const IndexSet& x = a.front().set;
  const IndexSet& y = b.front().set;
  const bool is_clear = x.runs().size() == 1 && y.runs().size() == 1 && !x.overlaps(y);
  if (is_clear) return kPairCost;
  std::int64_t runs = 0;
  for (const Box* box : {&a, &b}) {
    for (const BoxSide& side : *box) runs += std::ssize(side.set.runs()) - 1;
  }
  return kPairCost + kRunCost * runs;
}

// REQUIRES: both have points_in.
std::int64_t points_in_both(const Boxes& a, const Boxes& b) {
  std::int64_t all = 0;
  for (const Box& x : a) {
    for (const Box& y : b) {
      if (!disjoint(x, y)) all += points_in({intersection(x, y)}).value_or(0);
    }
  }
  return all;
}

// For messages: ranks that are checked as one are shown as their representative.
Boxes without_slopes(Boxes boxes) {
  for (Box& box : boxes) {
    for (BoxSide& side : box) side.slope = 0;
  }
  return boxes;
}

}  // namespace

SlopeId Slopes::intern(std::vector<std::int64_t> by_axis) {
  if (std::ranges::all_of(by_axis, [](std::int64_t s) { return s == 0; })) return 0;
  const auto found = std::ranges::find(known_, by_axis);
  const auto id = static_cast<SlopeId>(found - known_.begin());
  if (found != known_.end()) return id;
  if (known_.size() == kMaxSlopes) throw Asymmetric();
  known_.push_back(std::move(by_axis));
  return id;
}

Slopes::Bound Slopes::bind(SlopeId slope, std::span<const std::int64_t> positions) {
  if (slope == 0) return {};
  std::vector<std::int64_t> rest = (*this)[slope];
  Bound bound;
  for (std::size_t k = 0; k < rest.size(); ++k) {
    if (positions[k] < 0) continue;
    bound.by += rest[k] * positions[k];
    rest[k] = 0;
  }
  bound.rest = intern(std::move(rest));
  return bound;
}

SumId Sums::intern(Boxes boxes) {
  const std::uint64_t hash = hash_of(boxes);
  const std::int32_t found =
      by_hash_.find(hash, [&](std::int32_t id) { return known_[id] == boxes; });
  if (found >= 0) return SumId(found);
  const SumId id(known_.size());
  known_.push_back(std::move(boxes));
  by_hash_.insert(hash, id.value);
  return id;
}

std::optional<SumId> Sums::unite(SumId a, SumId b) {
  if (zero(a)) return b;
  if (zero(b)) return a;
  const std::uint64_t key =
      static_cast<std::uint64_t>(a.value) << 32U | static_cast<std::uint32_t>(b.value);
  const auto [found, is_new] = united_.try_emplace(key, -1);
  if (!is_new) return found->second < 0 ? std::nullopt : std::optional(SumId(found->second));
  for (const Box& x : (*this)[a]) {
    for (const Box& y : (*this)[b]) {
      cost_ += cost_of(x, y);
      if (!comparable(x, y) || !disjoint(x, y)) return std::nullopt;
    }
    check_cost();
  }
  Boxes boxes = (*this)[a];
  for (Box box : (*this)[b]) {
    for (std::size_t m = 0; m < boxes.size();) {
      if (!join(box, boxes[m])) {
        ++m;
        continue;
      }
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(m));
      m = 0;  // it is larger now, and may fit others
    }
    boxes.push_back(std::move(box));
  }
  if (boxes.size() > kMaxSumBoxes) {
    throw InputError(
        {.code = "D632",
         .what = fmt::format("the contributions of a sum lie in more than {} separate boxes",
                             with_separators(static_cast<std::int64_t>(kMaxSumBoxes))),
         .why = "boxes are stored and compared one by one",
         .help = "add adjacent contributions first, or larger parts"});
  }
  const SumId id = intern(std::move(boxes));
  united_[key] = id.value;
  return id;
}

std::optional<SumId> Sums::unite(std::vector<SumId> sums) {
  if (const std::optional<SumId> all = unite_side_by_side(sums)) return all;
  // As a binary tree: the intermediate sums together are little larger than the result.
  for (std::size_t width = 1; width < sums.size(); width *= 2) {
    for (std::size_t k = 0; k + width < sums.size(); k += 2 * width) {
      const std::optional<SumId> sum = unite(sums[k], sums[k + width]);
      if (!sum) return std::nullopt;
      sums[k] = *sum;
    }
  }
  return sums.front();
}

// One box each, which differ in one dimension and form one run there. Pairwise, positions that are
// distributed round robin would need as many runs as there are positions.
std::optional<SumId> Sums::unite_side_by_side(std::span<const SumId> sums) {
  std::vector<const Box*> boxes;
  for (const SumId sum : sums) {
    if (zero(sum)) continue;
    if ((*this)[sum].size() > 1) return std::nullopt;
    boxes.push_back(&(*this)[sum].front());
  }
  if (boxes.size() < 3) return std::nullopt;
  const Box& first = *boxes.front();
  const auto differs =
      static_cast<std::size_t>(std::ranges::mismatch(first, *boxes[1]).in1 - first.begin());
  if (differs == first.size()) return std::nullopt;
  std::vector<const IndexSet*> sets;
  for (const Box* box : boxes) {
    if (!comparable(first, *box)) return std::nullopt;
    for (std::size_t k = 0; k < first.size(); ++k) {
      const bool alike = k == differs ? (*box)[k].slope == first[k].slope : (*box)[k] == first[k];
      if (!alike) return std::nullopt;
    }
    sets.push_back(&(*box)[differs].set);
  }
  Box all = first;
  all[differs].set = one_run(sets);
  if (all[differs].set.empty()) return std::nullopt;
  return intern({std::move(all)});
}

void Sums::check_cost() const {
  if (cost_ <= kMaxCost) return;
  throw InputError(
      {.code = "D632",
       .what = fmt::format("the contributions of sums lie in too many separate parts: more than {} "
                           "were compared",
                           with_separators(kMaxCost / kRunCost)),
       .why = "contributions without a constant stride are stored one by one",
       .help = "give every rank a contiguous block, or check a shorter sequence"});
}

bool Sums::same(SumId a, SumId b) const {
  if (a == b) return true;
  const Boxes& x = (*this)[a];
  const Boxes& y = (*this)[b];
  if (x.size() <= 1 && y.size() <= 1) return false;
  if (!x.empty() && !y.empty() && !comparable(x.front(), y.front())) return false;
  const std::optional<std::int64_t> points = points_in(x);
  const std::optional<std::int64_t> others = points_in(y);
  if (!points || !others) return difference(x, y).empty() && difference(y, x).empty();
  return points == others && points == points_in_both(x, y);
}

SumId Sums::bind(SumId id, std::span<const std::int64_t> positions) {
  Boxes boxes = (*this)[id];
  bool changed = false;
  for (Box& box : boxes) {
    for (BoxSide& part : box) {
      if (part.slope == 0) continue;
      const Slopes::Bound bound = slopes_.bind(part.slope, positions);
      part = {part.set.shifted(bound.by), bound.rest};
      changed = true;
    }
  }
  return changed ? intern(std::move(boxes)) : id;
}

Boxes Sums::missing(SumId a, SumId b) const {
  Boxes cut = without_slopes((*this)[b]);
  const Boxes all = without_slopes((*this)[a]);
  if (!all.empty()) std::erase_if(cut, [&](const Box& x) { return !comparable(x, all.front()); });
  return difference(all, cut);
}

Boxes Sums::common(SumId a, SumId b) const {
  Boxes both;
  for (const Box& x : without_slopes((*this)[a])) {
    for (const Box& y : without_slopes((*this)[b])) {
      if (!comparable(x, y)) continue;
      Box box = intersection(x, y);
      if (!empty(box)) both.push_back(std::move(box));
    }
  }
  return both;
}

}  // namespace shiplap::check
