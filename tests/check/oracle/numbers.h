// What a row holds, as numbers: cells of a tensor, and of each cell a formal sum, the coefficient
// of every contribution.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "rational.h"
#include "rules.h"
#include "shiplap/plan/expand.h"

namespace shiplap::oracle {

using Coordinates = std::vector<std::int64_t>;
// By the coordinates in the dimensions of the sum; those of a tensor without a sum are empty. What
// is not here is zero.
using Coefficients = std::map<Coordinates, Rational>;

struct Slot {
  Coordinates part;           // one for each dimension of the tensor's part
  std::int64_t fragment = 0;  // a cell may fill several rows: which of them
  std::int64_t fragments = 1;
  Coefficients sum;
  friend bool operator==(const Slot&, const Slot&) = default;
};

struct Row {
  enum class Kind : std::uint8_t { nothing, unknown, known };
  Kind kind = Kind::nothing;
  std::int32_t tensor = -1;
  std::int64_t instance = 0;
  bool is_new = false;
  std::vector<Slot> slots;
  friend bool operator==(const Row&, const Row&) = default;
};

// The rows that a stated value denotes: each contribution that it names and the mask leaves,
// with the scale as its coefficient. Throws InternalError if these are more than can be written
// out.
[[nodiscard]] std::vector<Row> stated(const plan::RankProgram& program,
                                      const plan::flat::Value& value, std::int64_t rows);

// Adds coefficients. Breaks a rule where the slots hold different cells, one row was never written,
// a contribution is in both, or the coefficients of a cell are not all the same. (Of a cell, not of
// a row: a row of several cells has no scale of its own.)
[[nodiscard]] Row sum(const Row& a, const Row& b, Rules& rules);

[[nodiscard]] Row scaled(Row row, const plan::Ratio& by);

// All ways to take one of each, the last fastest.
[[nodiscard]] std::vector<Coordinates> product(const std::vector<Coordinates>& sets);

// 0 .. size-1
[[nodiscard]] Coordinates whole(const plan::Dimension& dimension);

// The coordinates that a value has of a dimension, in its order; empty for a sum that is zero.
[[nodiscard]] Coordinates coordinates(const plan::RankProgram& program,
                                      const plan::flat::Value& value, plan::DimensionId dimension);

// Whether a contribution is there at all.
[[nodiscard]] bool mask_leaves(const plan::Plan& plan, const plan::Tensor& tensor,
                               const Coordinates& part, const Coordinates& contribution);

// All contributions of a cell.
[[nodiscard]] std::set<Coordinates> all_contributions(const plan::Plan& plan,
                                                      const plan::Tensor& tensor,
                                                      const Coordinates& part);

}  // namespace shiplap::oracle
