// What a row holds: cells of a tensor, and for each of them the contributions that are in its sum,
// one by one.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::oracle {

using Coordinates = std::vector<std::int64_t>;

struct Cell {
  Coordinates part;           // one for each dimension of the tensor's part
  std::int64_t fragment = 0;  // a cell may fill several rows: which of them
  std::int64_t fragments = 1;
  std::set<Coordinates> sum;  // one for each dimension of its sum; none: zero
  plan::Ratio scale;          // 1 if zero
  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Row {
  enum class Kind : std::uint8_t { nothing, unknown, known };
  Kind kind = Kind::nothing;
  std::int32_t tensor = -1;
  std::int64_t instance = 0;
  bool is_new = false;
  std::vector<Cell> cells;
  friend bool operator==(const Row&, const Row&) = default;
};

// The rows that a stated value stands for.
[[nodiscard]] std::vector<Row> stated(const plan::RankProgram& program,
                                      const plan::flat::Value& value, std::int64_t rows);

// Nothing where they cannot be united: counted twice, other things, never written.
[[nodiscard]] std::optional<Row> united(const Row& a, const Row& b);

[[nodiscard]] Row scaled(Row row, const plan::Ratio& by);

// The coordinates that a value has of a dimension, in its order; empty for a sum that is zero.
[[nodiscard]] std::vector<std::int64_t> coordinates(const plan::RankProgram& program,
                                                    const plan::flat::Value& value,
                                                    plan::DimensionId dimension);

// Every contribution that the mask leaves is there, in all cells.
[[nodiscard]] bool is_complete(const plan::RankProgram& program, const plan::flat::Value& value);

}  // namespace shiplap::oracle
