#include <algorithm>
#include <utility>

#include "shiplap/check/boxes_internal.h"

namespace shiplap::check {
namespace {

// Throws Asymmetric if the relation of both sides depends on the rank.
void require_one_slope(const BoxSide& a, const BoxSide& b) {
  if (a.slope != b.slope) throw Asymmetric();
}

}  // namespace

bool empty(const Box& box) {
  return std::ranges::any_of(box, [](const BoxSide& side) { return side.set.empty(); });
}

bool disjoint(const Box& a, const Box& b) {
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

Box intersection(const Box& a, const Box& b) {
  Box result;
  result.reserve(a.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    require_one_slope(a[k], b[k]);
    result.push_back({a[k].set.intersected(b[k].set), a[k].slope});
  }
  return result;
}

// Splits off, dimension by dimension, the part of `a` outside of `b`, and continues inside.
void subtract(const Box& a, const Box& b, Boxes& out) {
  if (empty(a)) return;
  if (empty(b)) {
    out.push_back(a);
    return;
  }
  Box rest = a;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (a[k] == b[k]) continue;
    require_one_slope(a[k], b[k]);
    IndexSet outside = rest[k].set.without(b[k].set);
    if (!outside.empty()) {
      out.push_back(rest);
      out.back()[k].set = std::move(outside);
    }
    rest[k].set = rest[k].set.intersected(b[k].set);
    if (rest[k].set.empty()) return;
  }
}

Boxes difference(const Boxes& a, const Boxes& b) {
  Boxes rest = a;
  for (const Box& cut : b) {
    Boxes left;
    for (const Box& box : rest) subtract(box, cut, left);
    rest = std::move(left);
  }
  return rest;
}

bool join(Box& a, const Box& b) {
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

std::optional<std::int64_t> points_in(const Boxes& boxes) {
  std::int64_t all = 0;
  for (const Box& box : boxes) {
    std::int64_t points = 1;
    for (const BoxSide& side : box) {
      if (__builtin_mul_overflow(points, side.set.size(), &points)) return std::nullopt;
    }
    if (__builtin_add_overflow(all, points, &all)) return std::nullopt;
  }
  return all;
}

Box bounding_box(const Boxes& boxes) {
  if (boxes.empty()) return {};
  Box result(boxes.front().size());
  for (std::size_t k = 0; k < result.size(); ++k) {
    std::vector<const IndexSet*> sides;
    for (const Box& box : boxes) {
      if (sides.empty() || *sides.back() != box[k].set) sides.push_back(&box[k].set);
    }
    result[k].set = unite(sides).set;
  }
  return result;
}

}  // namespace shiplap::check
