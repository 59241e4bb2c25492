// Which contributions a sum has: disjoint boxes of coordinates, kept once each.
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
  // By axis, in the order of those axes.
  SlopeId find(std::vector<std::int64_t> by_axis);
  // How far it moves in all, with the axes it moved along left out. A position below 0 leaves its
  // axis as it is.
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

  // Of disjoint boxes; none: zero. A tensor that is no sum has one box without dimensions.
  SumId find(Boxes boxes);
  [[nodiscard]] const Boxes& operator[](SumId id) const { return known_[id.index()]; }
  [[nodiscard]] bool zero(SumId id) const { return known_[id.index()].empty(); }
  // Nothing if they have a contribution in common. Throws Asymmetric, and InputError D632 where it
  // falls into too many boxes.
  [[nodiscard]] std::optional<SumId> unite(SumId a, SumId b);
  // All of them at once; nothing if any two have a contribution in common.
  [[nodiscard]] std::optional<SumId> unite(std::vector<SumId> sums);
  [[nodiscard]] bool same(SumId a, SumId b) const;
  [[nodiscard]] SumId bind(SumId id, std::span<const std::int64_t> positions);
  // Contributions of `a` that `b` lacks, and of both: for messages, without slopes.
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
