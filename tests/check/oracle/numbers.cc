#include "numbers.h"

#include <algorithm>

#include "shiplap/base/error.h"

namespace shiplap::oracle {
namespace {

using plan::DimensionId;
using plan::RankProgram;
using plan::flat::Run;
using plan::flat::Value;

// The dimensions of the part, in the order in which the value has them.
std::vector<DimensionId> order_of(const RankProgram& program, const Value& value) {
  const plan::Tensor& tensor = program.plan->tensors[value.tensor];
  std::vector<DimensionId> order;
  for (const Run& run : program.runs_of(value)) {
    if (tensor.in_sum(run.dimension)) continue;
    if (std::ranges::find(order, run.dimension) == order.end()) order.push_back(run.dimension);
  }
  return order;
}

std::vector<Slot> cells_of(const RankProgram& program, const Value& value) {
  const plan::Tensor& tensor = program.plan->tensors[value.tensor];
  const std::vector<DimensionId> order = order_of(program, value);
  std::vector<Coordinates> parts;
  for (const DimensionId dimension : order) {
    parts.push_back(coordinates(program, value, dimension));
  }
  std::vector<Coordinates> sums;
  for (std::size_t k = tensor.part.size(); k < tensor.dimensions(); ++k) {
    sums.push_back(coordinates(program, value, DimensionId(k)));
  }
  const std::vector<Coordinates> contributions = product(sums);
  std::vector<Slot> cells;
  for (const Coordinates& written : product(parts)) {
    Slot& cell = cells.emplace_back();
    cell.part.resize(tensor.part.size());
    for (std::size_t k = 0; k < order.size(); ++k) cell.part[order[k].index()] = written[k];
    if (value.zero) continue;
    for (const Coordinates& one : contributions) {
      if (mask_leaves(*program.plan, tensor, cell.part, one)) cell.sum[one] = Rational(value.scale);
    }
  }
  return cells;
}

}  // namespace

std::vector<Coordinates> product(const std::vector<Coordinates>& sets) {
  constexpr std::size_t kMax = 1'000'000;
  std::vector<Coordinates> all{{}};
  for (const Coordinates& set : sets) {
    if (all.size() * set.size() > kMax) throw InternalError("too large for the oracle");
    std::vector<Coordinates> longer;
    longer.reserve(all.size() * set.size());
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

Coordinates whole(const plan::Dimension& dimension) {
  Coordinates all;
  for (std::int64_t k = 0; k < dimension.size; ++k) all.push_back(k);
  return all;
}

Coordinates coordinates(const RankProgram& program, const Value& value, DimensionId dimension) {
  Coordinates all;
  for (const Run& run : program.runs_of(value)) {
    if (run.dimension != dimension) continue;
    for (std::int64_t k = 0; k < run.count; ++k) all.push_back(run.begin + k * run.stride);
  }
  return all;
}

bool mask_leaves(const plan::Plan& plan, const plan::Tensor& tensor, const Coordinates& part,
                 const Coordinates& contribution) {
  const auto side = [&](const plan::MaskSide& it) {
    const std::size_t k = it.dimension.index();
    const std::int64_t at = k < part.size() ? part[k] : contribution[k - part.size()];
    if (!it.list.exists()) return at;
    return plan.lists[it.list].values.at(at);
  };
  return std::ranges::all_of(tensor.mask, [&](const plan::MaskTerm& term) {
    return term.comparator == plan::Comparator::equal ? side(term.left) == side(term.right)
                                                      : side(term.left) <= side(term.right);
  });
}

std::set<Coordinates> all_contributions(const plan::Plan& plan, const plan::Tensor& tensor,
                                        const Coordinates& part) {
  std::vector<Coordinates> sums;
  for (const plan::Dimension& dimension : tensor.sum) sums.push_back(whole(dimension));
  std::set<Coordinates> left;
  for (const Coordinates& one : product(sums)) {
    if (mask_leaves(plan, tensor, part, one)) left.insert(one);
  }
  return left;
}

std::vector<Row> stated(const RankProgram& program, const Value& value, std::int64_t rows) {
  const std::vector<Slot> cells = cells_of(program, value);
  const Row empty{.kind = Row::Kind::known,
                  .tensor = value.tensor.value,
                  .instance = value.instance,
                  .is_new = value.is_new};
  std::vector<Row> all(rows, empty);
  const std::size_t per_row =
      std::max<std::size_t>(1, cells.size() / std::max<std::size_t>(1, all.size()));
  const std::size_t per_cell =
      std::max<std::size_t>(1, all.size() / std::max<std::size_t>(1, cells.size()));
  for (std::size_t k = 0; k < all.size(); ++k) {
    for (std::size_t j = 0; j < per_row; ++j) {
      Slot slot = cells[k / per_cell * per_row + j];
      slot.fragment = static_cast<std::int64_t>(k % per_cell);
      slot.fragments = static_cast<std::int64_t>(per_cell);
      all[k].slots.push_back(std::move(slot));
    }
  }
  return all;
}

Row sum(const Row& a, const Row& b, Rules& rules) {
  rules.require("addition: both were written",
                a.kind != Row::Kind::nothing && b.kind != Row::Kind::nothing);
  if (a.kind == Row::Kind::unknown) return a;
  if (b.kind == Row::Kind::unknown) return b;
  const bool same_tensor = a.tensor == b.tensor && a.instance == b.instance &&
                           a.is_new == b.is_new && a.slots.size() == b.slots.size();
  rules.require("addition: the same cells", same_tensor);
  Row total = a;
  for (std::size_t k = 0; k < total.slots.size(); ++k) {
    Slot& slot = total.slots[k];
    const Slot& more = b.slots[k];
    rules.require("addition: the same cells", slot.part == more.part &&
                                                  slot.fragment == more.fragment &&
                                                  slot.fragments == more.fragments);
    for (const auto& [contribution, coefficient] : more.sum) {
      Rational& here = slot.sum[contribution];
      rules.require("addition: nothing is counted twice", here.is_zero());
      here = here + coefficient;
    }
    rules.require("addition: one coefficient",
                  std::ranges::all_of(slot.sum, [&](const auto& entry) {
                    return entry.second == slot.sum.begin()->second;
                  }));
  }
  return total;
}

Row scaled(Row row, const plan::Ratio& by) {
  for (Slot& slot : row.slots) {
    for (auto& [contribution, coefficient] : slot.sum) coefficient = coefficient * Rational(by);
  }
  return row;
}

}  // namespace shiplap::oracle
