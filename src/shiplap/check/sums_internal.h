// The contributions of a sum as disjoint boxes of coordinates, hash-consed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/check/boxes_internal.h"
#include "shiplap/check/id_table_internal.h"

namespace shiplap::check {

class Slopes {
 public:
  Slopes() : known_(1) {}
  // Returns the id of a slope, given by axis of symmetry.
  SlopeId intern(std::vector<std::int64_t> by_axis);
  // The total shift at these positions, and the slope along the other axes. A negative position
  // keeps its axis.
  struct Bound {
    std::int64_t by = 0;
    SlopeId rest = 0;
  };
  [[nodiscard]] Bound bind(SlopeId slope, std::span<const std::int64_t> positions);
  [[nodiscard]] const std::vector<std::int64_t>& operator[](SlopeId slope) const {
    return known_[slope];
  }

 private:
  std::vector<std::vector<std::int64_t>> known_;
};

using SumId = Id<struct SumTag>;

class Sums {
 public:
  explicit Sums(Slopes& slopes) : slopes_(slopes) {}

  // Returns the id of a sum. REQUIRES: the boxes are disjoint. No box: zero. A tensor that is no
  // sum has one box without dimensions.
  SumId intern(Boxes boxes);
  [[nodiscard]] const Boxes& operator[](SumId id) const { return known_[id.index()]; }
  [[nodiscard]] bool zero(SumId id) const { return known_[id.index()].empty(); }
  // Returns none if they have a contribution in common. Throws Asymmetric, or InputError D632 if
  // the result has too many boxes.
  [[nodiscard]] std::optional<SumId> unite(SumId a, SumId b);
  // Unites all; none if two of them have a contribution in common.
  [[nodiscard]] std::optional<SumId> unite(std::vector<SumId> sums);
  [[nodiscard]] bool same(SumId a, SumId b) const;
  [[nodiscard]] SumId bind(SumId id, std::span<const std::int64_t> positions);
  // The contributions of `a` that are missing in `b`, and those of both: for messages, without
  // slopes.
  [[nodiscard]] Boxes missing(SumId a, SumId b) const;
  [[nodiscard]] Boxes common(SumId a, SumId b) const;

 private:
  [[nodiscard]] std::optional<SumId> unite_side_by_side(std::span<const SumId> sums);
  // Throws InputError D632.
  void check_cost() const;

  Slopes& slopes_;
  std::int64_t cost_ = 0;  // of all comparisons so far
  std::vector<Boxes> known_;
  IdTable by_hash_;
  std::unordered_map<std::uint64_t, std::int32_t> united_;  // -1: not disjoint
};

}  // namespace shiplap::check
