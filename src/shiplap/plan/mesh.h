// The device mesh: a grid of ranks with named axes, and groups of ranks along its axes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/plan/expr.h"

namespace shiplap::plan {

struct Axis {
  std::string name;
  std::int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

// Several axes read as one; the last named varies fastest.
struct Alias {
  std::string name;
  std::vector<AxisId> axes;
  friend bool operator==(const Alias&, const Alias&) = default;
};

inline constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

// The last axis varies fastest: rank = (.. * size of axis k + position on axis k) ..
struct Mesh {
  IdVector<AxisId, Axis> axes;
  std::vector<Alias> aliases;
  friend bool operator==(const Mesh&, const Mesh&) = default;

  [[nodiscard]] std::int64_t ranks() const;
  // The number of positions on an axis or alias.
  [[nodiscard]] std::int64_t size(AxisId id) const;
  [[nodiscard]] const std::string& name(AxisId id) const;
  [[nodiscard]] bool is_alias(AxisId id) const { return id.index() >= axes.size(); }
  // The axes of an id: itself, or those of the alias.
  [[nodiscard]] std::vector<AxisId> axes_of(AxisId id) const;
  // The difference between ranks at neighbouring positions. REQUIRES: not an alias.
  [[nodiscard]] std::int64_t stride(AxisId axis) const;
  // Positions of `rank` on every axis, then on every alias.
  [[nodiscard]] std::vector<std::int64_t> positions(Rank rank) const;
  // Returns the rank at `position` on an axis or alias, with all other positions as those of
  // `rank`.
  [[nodiscard]] Rank moved(Rank rank, AxisId id, std::int64_t position) const;
};

// "dp=2,tp=4"
[[nodiscard]] std::string format_axes(std::span<const Axis> axes, std::string_view separator = ",");

// An ordered set of ranks: a regular grid in O(axes) memory, or a list.
class RankSet {
 public:
  // `count` ranks, `stride` apart.
  struct Step {
    std::int64_t count = 1;
    std::int64_t stride = 1;
    friend bool operator==(const Step&, const Step&) = default;
  };

  RankSet() = default;
  // The grid first + sum of (i_k * stride_k), the last step fastest.
  RankSet(Rank first, const std::vector<Step>& steps);
  // In this order. Stored as a grid if the ranks are equidistant.
  explicit RankSet(std::vector<Rank> listed);

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] Rank operator[](std::int64_t position) const;
  // Returns the position of `rank`, or -1.
  [[nodiscard]] std::int64_t find(Rank rank) const;
  // Same ranks in the same order.
  friend bool operator==(const RankSet& a, const RankSet& b);

 private:
  Rank first_;
  std::vector<Step> steps_;   // normalized: no steps of one rank, adjacent steps merged
  std::vector<Rank> listed_;  // only if there is no grid
  std::int64_t size_ = 0;
};

// Returns the ranks with the same position as `rank` on all axes except `ids`, in mesh order.
[[nodiscard]] RankSet along(const Mesh& mesh, std::span<const AxisId> ids, Rank rank);

}  // namespace shiplap::plan
