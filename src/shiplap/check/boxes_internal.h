// Sets of coordinates in several dimensions, as boxes: products of one index set per dimension.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "shiplap/base/index_set.h"

namespace shiplap::check {

// How a coordinate moves with the positions on the axes along which ranks are looked at once. 0: it
// does not.
using SlopeId = std::int32_t;

// What holds on some of the ranks that are looked at once, and not on others: they must be looked
// at one by one.
struct Asymmetric : std::exception {};

struct BoxSide {
  IndexSet set;
  SlopeId slope = 0;
  friend bool operator==(const BoxSide&, const BoxSide&) = default;
};

// By dimension. A box without dimensions has one point.
using Box = std::vector<BoxSide>;
using Boxes = std::vector<Box>;

[[nodiscard]] bool empty(const Box& box);
// The functions of two boxes. REQUIRES: both have the same dimensions. They throw Asymmetric where
// the answer depends on the rank.
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

// Adds a value on a box: where there is one already, combine(there, value).
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

// The smallest box around them, without slopes: for messages. REQUIRES: all have the same
// dimensions.
[[nodiscard]] Box outline(const Boxes& boxes);

}  // namespace shiplap::check
