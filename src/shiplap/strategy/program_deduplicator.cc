// Problem: a recorded world has one concrete program per rank. A plan should have one parametric
// program for all ranks that do the same: small to store, to read and to check.
//
// Idea: the programs of SPMD ranks are equal except for their numbers (rows, indices, peers, tags).
// add() moves the numbers out of a program, in the fixed order of NumberVisitor; what is left is
// compared by hash and then in full (hash-consing), which yields the classes. finish() fits every
// number of a class, as a column over its ranks, to the first of these forms that holds on all:
// 1. only for peers: a shift along one axis of the mesh, with or without wrap-around (`pp+1`);
// 2. a constant;
// 3. an affine function of the mesh position, base + sum of factor * position. The factors come
//    from one neighbour of the first rank per axis and are then checked on every rank;
// 4. a list by rank.
//
// extrapolate() extends a class to ranks that were not lowered. Their numbers are known to be
// affine (to_plan.cc), so an affine fit of the added ranks holds on them too. Two cases need care:
// - A peer may be affine and still leave its axis on a rank that was not added: rank + 1 is the
//   next on the inner axis, except at its end. So a shift is checked on the extrapolated ranks too.
// - A list has no entries for them. Then extrapolate() returns false and all ranks are lowered.
//
// Loops are not recovered: a recorded program has facts and operations only.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "shiplap/strategy/numbers_internal.h"
#include "shiplap/strategy/program_deduplicator_internal.h"

namespace shiplap::strategy {
namespace {

using plan::Expr;

// Returns the numbers of a program, in order, and sets them to 0, so that programs can be compared.
std::vector<std::int64_t> take_numbers(plan::Program& program) {
  std::vector<std::int64_t> numbers;
  const auto take = [&](Expr& expr) {
    numbers.push_back(expr.literal());
    expr = 0;
  };
  const auto take_peer = [&](plan::Peer& peer) { take(peer.where); };
  NumberVisitor(take, take_peer).program(program);
  return numbers;
}

// Distinguishes most programs; equal hashes are followed by a full comparison.
std::uint64_t hash_of(const plan::Program& program) {
  std::uint64_t hash = 1469598103934665603ULL;
  const auto mix = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ULL; };
  mix(program.buffers.size());
  for (const plan::Statement& statement : program.body) {
    mix(statement.node.index());
    const auto* op = std::get_if<plan::Operation>(&statement.node);
    if (op == nullptr) continue;
    mix(op->action.index());
    mix(op->stream.index());
    mix(op->after.size() * 2 + (op->async ? 1 : 0));
    const auto* compute = std::get_if<plan::Compute>(&op->action);
    if (compute == nullptr) continue;
    mix(std::hash<std::string>{}(compute->kernel));
    mix(compute->accesses.size());
  }
  return hash;
}

// base + sum of factor * position.
struct Affine {
  std::int64_t base = 0;
  std::vector<std::int64_t> factors;
  [[nodiscard]] std::int64_t at(const Positions& positions, std::size_t rank) const {
    std::int64_t value = base;
    for (std::size_t a = 0; a < factors.size(); ++a) value += factors[a] * positions.at(rank, a);
    return value;
  }
  [[nodiscard]] Expr expr() const {
    Expr sum = base;
    bool first = base == 0;
    for (std::size_t a = 0; a < factors.size(); ++a) {
      if (factors[a] == 0) continue;
      const Expr axis = Expr::axis(plan::AxisId(a));
      const Expr term = factors[a] == 1 ? axis : factors[a] * axis;
      sum = first ? term : sum + term;
      first = false;
    }
    return sum;
  }
};

// One number on all ranks of a class.
class Column {
 public:
  Column(const std::vector<std::int64_t>& numbers, std::size_t count, std::size_t which)
      : numbers_(numbers), count_(count), which_(which) {}
  [[nodiscard]] std::int64_t operator[](std::size_t rank) const {
    return numbers_[rank * count_ + which_];
  }
  [[nodiscard]] std::size_t size() const { return numbers_.size() / count_; }
  [[nodiscard]] bool constant() const {
    for (std::size_t r = 1; r < size(); ++r) {
      if ((*this)[r] != (*this)[0]) return false;
    }
    return true;
  }

 private:
  const std::vector<std::int64_t>& numbers_;
  std::size_t count_;
  std::size_t which_;
};

class Fitter {
 public:
  // The columns have the numbers of `ranks`. Those of `extrapolated` are known to be affine.
  Fitter(plan::Plan& plan, const std::vector<std::int32_t>& ranks,
         const std::vector<std::int32_t>& extrapolated)
      : plan_(plan),
        ranks_(ranks),
        positions_(plan.mesh, ranks),
        extrapolated_(extrapolated),
        extrapolated_positions_(plan.mesh, extrapolated) {
    for (std::size_t a = 0; a < positions_.axes(); ++a) {
      neighbours_.push_back(positions_.neighbour(a));
    }
  }

  Expr fit_expr(const Column& column) {
    if (column.constant()) return column[0];
    if (const std::optional<Affine> affine = fit_affine(column)) return affine->expr();
    return listed(column);
  }

  plan::Peer fit_peer(const Column& column) {
    for (std::size_t a = 0; a < positions_.axes(); ++a) {
      for (const bool wrap : {false, true}) {
        if (const auto shift = fit_shift(column, a, wrap)) {
          return {.axis = plan::AxisId(a), .wrap = wrap, .where = *shift};
        }
      }
    }
    return {.axis = {}, .wrap = false, .where = fit_expr(column)};
  }

 private:
  // Takes the slopes from neighbours of the first rank, then checks every rank.
  [[nodiscard]] std::optional<Affine> fit_affine(const Column& column) const {
    Affine affine{.base = column[0], .factors = std::vector<std::int64_t>(positions_.axes(), 0)};
    for (std::size_t a = 0; a < positions_.axes(); ++a) {
      const std::optional<std::size_t> neighbour = neighbours_[a];
      if (!neighbour) continue;
      const std::int64_t step = positions_.at(*neighbour, a) - positions_.at(0, a);
      const std::int64_t rise = column[*neighbour] - column[0];
      if (rise % step != 0) return std::nullopt;
      affine.factors[a] = rise / step;
      affine.base -= affine.factors[a] * positions_.at(0, a);
    }
    for (std::size_t r = 0; r < column.size(); ++r) {
      if (affine.at(positions_, r) != column[r]) return std::nullopt;
    }
    return affine;
  }

  // Returns the shift of the peer on an axis, if it is the same for all ranks.
  [[nodiscard]] std::optional<std::int64_t> fit_shift(const Column& column, std::size_t axis,
                                                      bool wrap) const {
    std::optional<std::int64_t> shift;
    const auto agrees = [&](std::int32_t rank, std::int64_t position, std::int64_t peer) {
      const auto steps = steps_to(peer - rank, position, plan::AxisId(axis), wrap);
      if (!steps || (shift && *shift != *steps)) return false;
      shift = steps;
      return true;
    };
    for (std::size_t r = 0; r < column.size(); ++r) {
      if (!agrees(ranks_[r], positions_.at(r, axis), column[r])) return std::nullopt;
    }
    if (extrapolated_.empty()) return shift;
    const std::optional<Affine> affine = fit_affine(column);
    if (!affine) return std::nullopt;
    for (std::size_t r = 0; r < extrapolated_.size(); ++r) {
      const std::int64_t peer = affine->at(extrapolated_positions_, r);
      if (!agrees(extrapolated_[r], extrapolated_positions_.at(r, axis), peer)) return std::nullopt;
    }
    return shift;
  }

  // Returns the shift on an axis of a peer whose rank differs by `apart`, if it is on this axis.
  [[nodiscard]] std::optional<std::int64_t> steps_to(std::int64_t apart, std::int64_t position,
                                                     plan::AxisId axis, bool wrap) const {
    const std::int64_t size = plan_.mesh.size(axis);
    const std::int64_t stride = plan_.mesh.stride(axis);
    if (apart == 0 || apart % stride != 0) return std::nullopt;
    std::int64_t steps = apart / stride;
    if (position + steps < 0 || position + steps >= size) return std::nullopt;
    if (wrap) steps = ((steps % size) + size) % size;
    if (wrap && steps > size / 2) steps -= size;
    return steps;
  }

  // Falls back to a list by rank.
  Expr listed(const Column& column) {
    const std::int64_t ranks = plan_.mesh.ranks();
    std::vector<std::int64_t> values(ranks, 0);
    for (std::size_t r = 0; r < column.size(); ++r) {
      values[ranks_[r]] = column[r];
    }
    const auto found = std::ranges::find_if(
        plan_.lists, [&](const plan::List& list) { return list.values == values; });
    const auto index = static_cast<std::size_t>(found - plan_.lists.begin());
    if (found == plan_.lists.end()) {
      plan_.lists.push_back({.name = fmt::format("n{}", index), .values = std::move(values)});
    }
    return Expr::element(plan::ListId(index), Expr::rank());
  }

  plan::Plan& plan_;
  const std::vector<std::int32_t>& ranks_;
  Positions positions_;
  const std::vector<std::int32_t>& extrapolated_;
  Positions extrapolated_positions_;
  std::vector<std::optional<std::size_t>> neighbours_;
};

std::vector<plan::PositionRange> ranges(const std::set<std::int64_t>& positions) {
  std::vector<plan::PositionRange> result;
  for (const std::int64_t p : positions) {
    if (!result.empty() && result.back().last + 1 == p) {
      result.back().last = p;
    } else {
      result.push_back({.first = p, .last = p});
    }
  }
  return result;
}

}  // namespace

void ProgramDeduplicator::add(std::int32_t rank, plan::Program program) {
  const std::vector<std::int64_t> numbers = take_numbers(program);
  const std::uint64_t hash = hash_of(program);
  auto found = std::ranges::find_if(classes_, [&](const ProgramClass& program_class) {
    return program_class.hash == hash && program_class.count == numbers.size() &&
           program_class.program == program;
  });
  if (found == classes_.end()) {
    classes_.push_back({.program = std::move(program),
                        .hash = hash,
                        .added = {},
                        .extrapolated = {},
                        .numbers = {},
                        .count = numbers.size()});
    found = classes_.end() - 1;
  }
  found->added.push_back(rank);
  found->numbers.insert(found->numbers.end(), numbers.begin(), numbers.end());
}

// Selects by positions on axes if the ranks are a block of the mesh, else by ranks.
plan::Selector ProgramDeduplicator::selector(const std::vector<std::int32_t>& ranks) const {
  std::vector<std::set<std::int64_t>> positions(mesh_.axes.size());
  for (const std::int32_t rank : ranks) {
    const std::vector<std::int64_t> all = mesh_.positions(Rank(rank));
    for (std::size_t a = 0; a < positions.size(); ++a) positions[a].insert(all[a]);
  }
  std::size_t block = 1;
  for (const auto& axis : positions) block *= axis.size();
  plan::Selector selector;
  if (block != ranks.size()) {
    const std::set<std::int64_t> all(ranks.begin(), ranks.end());
    selector.terms.push_back({.axis = {}, .positions = ranges(all)});
    return selector;
  }
  for (std::size_t a = 0; a < positions.size(); ++a) {
    if (static_cast<std::int64_t>(positions[a].size()) == mesh_.axes[a].size) continue;
    selector.terms.push_back({.axis = plan::AxisId(a), .positions = ranges(positions[a])});
  }
  return selector;
}

void ProgramDeduplicator::fit_numbers(const ProgramClass& program_class, plan::Program& program,
                                      plan::Plan& plan) {
  Fitter fitter(plan, program_class.added, program_class.extrapolated);
  std::size_t next = 0;
  const auto put = [&](Expr& expr) {
    expr = fitter.fit_expr(Column(program_class.numbers, program_class.count, next++));
  };
  const auto put_peer = [&](plan::Peer& peer) {
    peer = fitter.fit_peer(Column(program_class.numbers, program_class.count, next++));
  };
  NumberVisitor(put, put_peer).program(program);
}

bool ProgramDeduplicator::extrapolate(const std::vector<std::int32_t>& added,
                                      const std::vector<std::int32_t>& ranks) {
  const auto program_class = std::ranges::find_if(classes_, [&](const ProgramClass& k) {
    return std::ranges::binary_search(k.added, added.front());
  });
  if (!std::ranges::includes(program_class->added, added)) return false;
  std::ranges::set_difference(ranks, added, std::back_inserter(program_class->extrapolated));
  plan::Plan candidate;
  candidate.mesh = mesh_;
  plan::Program program = program_class->program;
  fit_numbers(*program_class, program, candidate);
  return candidate.lists.empty();
}

void ProgramDeduplicator::finish(plan::Plan& plan) {
  for (ProgramClass& program_class : classes_) {
    fit_numbers(program_class, program_class.program, plan);
    const std::int32_t first = program_class.added.front();
    program_class.added.insert(program_class.added.end(), program_class.extrapolated.begin(),
                               program_class.extrapolated.end());
    std::ranges::sort(program_class.added);
    program_class.program.on = selector(program_class.added);
    program_class.program.name = classes_.size() == 1 ? "all" : fmt::format("as_rank_{}", first);
    plan.programs.push_back(std::move(program_class.program));
  }
  classes_.clear();
}

}  // namespace shiplap::strategy
