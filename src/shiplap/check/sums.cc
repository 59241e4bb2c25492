#include <algorithm>

#include "shiplap/check/sums_internal.h"

namespace shiplap::check {
namespace {

std::uint64_t hash_of(const std::vector<SumBox>& boxes) {
  std::uint64_t hash = boxes.size();
  for (const SumBox& box : boxes) {
    for (const SumPart& part : box) {
      hash = mixed(hash, part.slope);
      for (const IndexSet::Run& run : part.set.runs()) {
        hash = mixed(mixed(mixed(hash, run.begin), run.count), run.stride);
      }
    }
  }
  return hash;
}

std::int64_t volume(const SumBox& box) {
  std::int64_t cells = 1;
  for (const SumPart& part : box) cells *= part.set.size();
  return cells;
}

std::int64_t volume(const std::vector<SumBox>& boxes) {
  std::int64_t cells = 0;
  for (const SumBox& box : boxes) cells += volume(box);
  return cells;
}

// Sums of a row with one cell and of one with several have other dimensions, and nothing in common.
bool comparable(const SumBox& a, const SumBox& b) { return a.size() == b.size(); }

SumBox intersection(const SumBox& a, const SumBox& b) {
  SumBox result;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k].slope != b[k].slope) throw Asymmetric();
    result.push_back({a[k].set.intersected(b[k].set), a[k].slope});
  }
  return result;
}

// Cuts `b` out of `a`: what remains, as boxes.
void subtract(const SumBox& a, const SumBox& b, std::vector<SumBox>& out) {
  if (!comparable(a, b)) {
    out.push_back(a);
    return;
  }
  SumBox rest = a;
  for (std::size_t k = 0; k < a.size(); ++k) {
    SumBox outside = rest;
    outside[k].set = rest[k].set.without(b[k].set);
    if (volume(outside) > 0) out.push_back(outside);
    rest[k].set = rest[k].set.intersected(b[k].set);
  }
}

SumBox outline(const std::vector<SumBox>& boxes) {
  SumBox result;
  for (const SumBox& box : boxes) {
    if (result.empty()) result.resize(box.size());
    for (std::size_t k = 0; k < box.size(); ++k) {
      result[k].set = result[k].set.united(box[k].set);
    }
  }
  return result;
}

}  // namespace

SlopeId Slopes::find(std::vector<std::int64_t> by_axis) {
  if (std::ranges::all_of(by_axis, [](std::int64_t s) { return s == 0; })) return 0;
  const auto found = std::ranges::find(known_, by_axis);
  const auto id = static_cast<SlopeId>(found - known_.begin());
  if (found == known_.end()) known_.push_back(std::move(by_axis));
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
  bound.rest = find(std::move(rest));
  return bound;
}

SumId Sums::find(std::vector<SumBox> boxes) {
  const std::uint64_t hash = hash_of(boxes);
  const std::int32_t found = by_hash_.find(
      hash, [&](std::int32_t id) { return known_[static_cast<std::size_t>(id)] == boxes; });
  if (found >= 0) return SumId(found);
  const SumId id(known_.size());
  known_.push_back(std::move(boxes));
  by_hash_.insert(hash, id.value);
  return id;
}

bool Sums::disjoint(const SumBox& a, const SumBox& b) const {
  bool same_slopes = true;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k].slope != b[k].slope) {
      same_slopes = false;
    } else if (!a[k].set.overlaps(b[k].set)) {
      return true;
    }
  }
  if (!same_slopes) throw Asymmetric();
  return false;
}

bool Sums::join(SumBox& a, const SumBox& b) {
  std::size_t differs = a.size();
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k] == b[k]) continue;
    if (differs != a.size() || a[k].slope != b[k].slope) return false;
    differs = k;
  }
  if (differs == a.size()) return false;
  a[differs].set = a[differs].set.united(b[differs].set);
  return true;
}

std::optional<SumId> Sums::unite(SumId a, SumId b) {
  if (zero(a)) return b;
  if (zero(b)) return a;
  const std::uint64_t key =
      static_cast<std::uint64_t>(a.value) << 32U | static_cast<std::uint32_t>(b.value);
  const auto [found, is_new] = united_.try_emplace(key, -1);
  if (!is_new) return found->second < 0 ? std::nullopt : std::optional(SumId(found->second));
  for (const SumBox& x : (*this)[a]) {
    for (const SumBox& y : (*this)[b]) {
      if (disjoint(x, y)) continue;
      return std::nullopt;
    }
  }
  std::vector<SumBox> boxes = (*this)[a];
  boxes.insert(boxes.end(), (*this)[b].begin(), (*this)[b].end());
  for (std::size_t k = 0; k < boxes.size();) {
    bool joined = false;
    for (std::size_t m = 0; m < boxes.size() && !joined; ++m) {
      if (m == k || !join(boxes[m], boxes[k])) continue;
      boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(k));
      joined = true;
    }
    k = joined ? 0 : k + 1;
  }
  const SumId id = find(std::move(boxes));
  united_[key] = id.value;
  return id;
}

bool Sums::same(SumId a, SumId b) const {
  if (a == b) return true;
  const std::vector<SumBox>& x = (*this)[a];
  const std::vector<SumBox>& y = (*this)[b];
  if (x.size() <= 1 && y.size() <= 1) return false;
  if (!x.empty() && !y.empty() && !comparable(x.front(), y.front())) return false;
  const std::int64_t cells = volume(x);
  if (cells != volume(y)) return false;
  std::int64_t common = 0;
  for (const SumBox& p : x) {
    for (const SumBox& q : y) common += volume(intersection(p, q));
  }
  return common == cells;
}

SumId Sums::bind(SumId id, std::span<const std::int64_t> positions) {
  std::vector<SumBox> boxes = (*this)[id];
  bool changed = false;
  for (SumBox& box : boxes) {
    for (SumPart& part : box) {
      if (part.slope == 0) continue;
      const Slopes::Bound bound = slopes_.bind(part.slope, positions);
      part = {part.set.shifted(bound.by), bound.rest};
      changed = true;
    }
  }
  return changed ? find(std::move(boxes)) : id;
}

SumBox Sums::missing(SumId a, SumId b) const {
  std::vector<SumBox> rest = (*this)[a];
  for (const SumBox& cut : (*this)[b]) {
    std::vector<SumBox> left;
    for (const SumBox& box : rest) subtract(box, cut, left);
    rest = std::move(left);
  }
  return outline(rest);
}

SumBox Sums::common(SumId a, SumId b) const {
  std::vector<SumBox> both;
  for (const SumBox& x : (*this)[a]) {
    for (const SumBox& y : (*this)[b]) {
      if (!comparable(x, y)) continue;
      SumBox box = intersection(x, y);
      if (volume(box) > 0) both.push_back(std::move(box));
    }
  }
  return outline(both);
}

}  // namespace shiplap::check
