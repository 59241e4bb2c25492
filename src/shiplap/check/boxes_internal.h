// Sets of coordinates in several dimensions, as boxes: products of one index set per dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "shiplap/base/index_set.h"
#include "shiplap/plan/symmetry.h"

namespace shiplap::check {

// How a coordinate changes with the rank's positions on the axes of symmetry. 0: it is constant.
using SlopeId = std::int32_t;

// An answer would differ between ranks that are checked as one: symmetry does not apply.
using plan::Asymmetric;

struct BoxSide {
  IndexSet set;
  SlopeId slope = 0;
  friend bool operator==(const BoxSide&, const BoxSide&) = default;
};

// By dimension. A box without dimensions has one point.
using Box = std::vector<BoxSide>;
using Boxes = std::vector<Box>;

[[nodiscard]] bool empty(const Box& box);
// REQUIRES (functions of two boxes): both have the same dimensions. They throw Asymmetric if the
// answer depends on the rank.
[[nodiscard]] bool disjoint(const Box& a, const Box& b);
[[nodiscard]] Box intersection(const Box& a, const Box& b);
// Appends disjoint boxes: the points of `a` outside of `b`.
void subtract(const Box& a, const Box& b, Boxes& out);
[[nodiscard]] Boxes difference(const Boxes& a, const Boxes& b);
// Replaces `a` by the union if that is one box. REQUIRES: they are disjoint.
bool join(Box& a, const Box& b);
// A function that is constant on each of some disjoint boxes.
template <class Value>
using Piecewise = std::vector<std::pair<Box, Value>>;

// Adds a value on a box; points that have a value already get combine(there, value).
template <class Value, class Combine>
void overlay(Piecewise<Value>& function, const Box& box, const Value& value,
             const Combine& combine) {
  Piecewise<Value> result;
  Boxes left{box};
  for (auto& [there, old] : function) {
    if (disjoint(there, box)) {
      result.emplace_back(std::move(there), std::move(old));
      continue;
    }
    left = difference(left, {there});
    Boxes outside;
    subtract(there, box, outside);
    for (Box& piece : outside) result.emplace_back(std::move(piece), old);
    combine(old, value);
    result.emplace_back(intersection(there, box), std::move(old));
  }
  for (Box& piece : left) result.emplace_back(std::move(piece), value);
  function = std::move(result);
}

// The number of points. None if it needs more than 64 bits. REQUIRES: the boxes are disjoint.
[[nodiscard]] std::optional<std::int64_t> points_in(const Boxes& boxes);
// The bounding box, without slopes: for messages. REQUIRES: all have the same dimensions.
[[nodiscard]] Box bounding_box(const Boxes& boxes);

}  // namespace shiplap::check
