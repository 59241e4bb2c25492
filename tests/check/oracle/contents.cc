#include "contents.h"

#include <algorithm>

namespace shiplap::oracle {
namespace {

using plan::DimensionId;
using plan::RankProgram;
using plan::flat::Run;
using plan::flat::Value;

using Sets = std::vector<std::vector<std::int64_t>>;

// All ways to take one of each, the last fastest.
std::vector<Coordinates> product(const Sets& sets) {
  std::vector<Coordinates> all{{}};
  for (const auto& set : sets) {
    std::vector<Coordinates> longer;
    for (const Coordinates& start : all) {
      for (const std::int64_t next : set) {
        longer.push_back(start);
        longer.back().push_back(next);
      }
    }
    all = std::move(longer);
  }
  return all;
}

const plan::Tensor& tensor_of(const RankProgram& program, const Value& value) {
  return program.plan->tensors[value.tensor.index()];
}

// The dimensions of the part, in the order in which the value has them.
std::vector<DimensionId> order_of(const RankProgram& program, const Value& value) {
  std::vector<DimensionId> order;
  for (const Run& run : program.runs_of(value)) {
    if (tensor_of(program, value).in_sum(run.dimension)) continue;
    if (std::ranges::find(order, run.dimension) == order.end()) order.push_back(run.dimension);
  }
  return order;
}

bool holds(const RankProgram& program, const plan::Tensor& tensor, const Coordinates& all) {
  const auto side = [&](const plan::MaskSide& it) {
    const std::int64_t coordinate = all[it.dimension.index()];
    if (!it.list.exists()) return coordinate;
    return program.plan->lists[it.list.index()].values.at(static_cast<std::size_t>(coordinate));
  };
  return std::ranges::all_of(tensor.mask, [&](const plan::MaskTerm& term) {
    return term.comparator == plan::Comparator::equal ? side(term.left) == side(term.right)
                                                      : side(term.left) <= side(term.right);
  });
}

std::set<Coordinates> clipped(const RankProgram& program, const plan::Tensor& tensor,
                              const Coordinates& part, const Sets& sums) {
  std::set<Coordinates> left;
  for (const Coordinates& sum : product(sums)) {
    Coordinates all = part;
    all.insert(all.end(), sum.begin(), sum.end());
    if (holds(program, tensor, all)) left.insert(sum);
  }
  return left;
}

Sets whole_sums(const plan::Tensor& tensor) {
  Sets sets;
  for (const plan::Dimension& dimension : tensor.sum) {
    auto& set = sets.emplace_back();
    for (std::int64_t k = 0; k < dimension.size; ++k) set.push_back(k);
  }
  return sets;
}

std::vector<Cell> cells_of(const RankProgram& program, const Value& value) {
  const plan::Tensor& tensor = tensor_of(program, value);
  const std::vector<DimensionId> order = order_of(program, value);
  Sets parts;
  for (const DimensionId dimension : order) {
    parts.push_back(coordinates(program, value, dimension));
  }
  Sets sums;
  for (std::size_t k = tensor.part.size(); k < tensor.dimensions(); ++k) {
    sums.push_back(coordinates(program, value, DimensionId(k)));
  }
  std::vector<Cell> cells;
  for (const Coordinates& written : product(parts)) {
    Cell& cell = cells.emplace_back();
    cell.part.resize(tensor.part.size());
    for (std::size_t k = 0; k < order.size(); ++k) cell.part[order[k].index()] = written[k];
    if (!value.zero) cell.sum = clipped(program, tensor, cell.part, sums);
    if (!cell.sum.empty()) cell.scale = value.scale;
  }
  return cells;
}

}  // namespace

std::vector<std::int64_t> coordinates(const RankProgram& program, const Value& value,
                                      DimensionId dimension) {
  std::vector<std::int64_t> all;
  for (const Run& run : program.runs_of(value)) {
    if (run.dimension != dimension) continue;
    for (std::int64_t k = 0; k < run.count; ++k) all.push_back(run.begin + k * run.stride);
  }
  return all;
}

std::vector<Row> stated(const RankProgram& program, const Value& value, std::int64_t rows) {
  const std::vector<Cell> cells = cells_of(program, value);
  const Row empty{.kind = Row::Kind::known,
                  .tensor = value.tensor.value,
                  .instance = value.instance,
                  .is_new = value.is_new};
  std::vector<Row> all(static_cast<std::size_t>(rows), empty);
  const std::size_t per_row =
      std::max<std::size_t>(1, cells.size() / std::max<std::size_t>(1, all.size()));
  const std::size_t per_cell =
      std::max<std::size_t>(1, all.size() / std::max<std::size_t>(1, cells.size()));
  for (std::size_t k = 0; k < all.size(); ++k) {
    for (std::size_t j = 0; j < per_row; ++j) {
      Cell cell = cells[k / per_cell * per_row + j];
      cell.fragment = static_cast<std::int64_t>(k % per_cell);
      cell.fragments = static_cast<std::int64_t>(per_cell);
      all[k].cells.push_back(std::move(cell));
    }
  }
  return all;
}

std::optional<Row> united(const Row& a, const Row& b) {
  if (a.kind == Row::Kind::nothing || b.kind == Row::Kind::nothing) return std::nullopt;
  if (a.kind == Row::Kind::unknown) return a;
  if (b.kind == Row::Kind::unknown) return b;
  if (a.tensor != b.tensor || a.instance != b.instance || a.is_new != b.is_new) return std::nullopt;
  if (a.cells.size() != b.cells.size()) return std::nullopt;
  Row sum = a;
  for (std::size_t k = 0; k < sum.cells.size(); ++k) {
    Cell& cell = sum.cells[k];
    const Cell& more = b.cells[k];
    const bool same = cell.part == more.part && cell.fragment == more.fragment &&
                      cell.fragments == more.fragments;
    if (!same) return std::nullopt;
    if (more.sum.empty()) continue;
    if (!cell.sum.empty() && cell.scale != more.scale) return std::nullopt;
    cell.scale = more.scale;
    for (const Coordinates& contribution : more.sum) {
      if (!cell.sum.insert(contribution).second) return std::nullopt;
    }
  }
  return sum;
}

Row scaled(Row row, const plan::Ratio& by) {
  for (Cell& cell : row.cells) {
    if (cell.sum.empty()) continue;
    cell.scale = plan::Ratio(cell.scale.numerator() * by.numerator(),
                             cell.scale.denominator() * by.denominator());
  }
  return row;
}

bool is_complete(const RankProgram& program, const Value& value) {
  const plan::Tensor& tensor = tensor_of(program, value);
  return std::ranges::all_of(cells_of(program, value), [&](const Cell& cell) {
    return cell.sum == clipped(program, tensor, cell.part, whole_sums(tensor));
  });
}

}  // namespace shiplap::oracle
