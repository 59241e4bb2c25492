// Symmetry reduction: which ranks can be checked as one.
//
// Problem: a mesh can have 131,072 ranks, and most of them differ only in coordinates:
// data-parallel rank r holds the samples [r*b, (r+1)*b).
//
// Idea: find the axes along which this is the only difference, check the rank at position 0 of them
// as the representative, and carry with each coordinate its slope: how far it moves per step along
// each axis. Two steps:
//
//   1. Affine dependence analysis (an abstract interpretation; compare affine dependence in loop
//      optimization, Banerjee 1988): each expression is constant, affine or arbitrary in the
//      position on each axis. Expressions that decide control flow, sizes, rows, peers on an axis
//      or names must be constant, coordinates may be affine. Otherwise the axis is fixed: all its
//      positions are checked.
//   2. Slopes by comparison: the neighbour along each axis is expanded, and the difference of each
//      run's begin is its slope. Then all corners of the mesh are expanded and must agree. As all
//      expressions that depend on positions are affine, their values lie between those at the
//      corners, so an expression without a value, or a run that leaves its dimension, would show at
//      a corner.
//
// Both steps are conservative, and sets with different slopes are never compared: every operation
// on boxes and runs throws Asymmetric if its answer would depend on the rank, and check.cc starts
// again with one axis less. tests/check/symmetry_test.cc checks plans both ways.
#include <algorithm>
#include <numeric>
#include <variant>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

using plan::Expr;

constexpr std::size_t kMaxAxes = 6;  // 64 corners

// How an expression depends on the position on an axis.
enum class Dependence : std::uint8_t { constant, affine, arbitrary };
using Dependences = std::vector<Dependence>;  // by axis

class DependenceAnalysis {
 public:
  explicit DependenceAnalysis(const plan::Plan& plan) : plan_(plan), fixed_(plan.mesh.axes.size()) {
    for (const plan::Program& program : plan.programs) {
      select(program.on);
      for (const plan::Buffer& buffer : program.buffers) {
        require_constant(buffer.rows);
        require_constant(buffer.row_bytes);
      }
      block(program.body);
    }
    for (const plan::Selector& spare : plan.spares) select(spare);
  }

  // By axis: whether ranks at different positions must be checked separately.
  [[nodiscard]] const std::vector<bool>& fixed() const { return fixed_; }

 private:
  [[nodiscard]] Dependences all_constant() const {
    return Dependences(fixed_.size(), Dependence::constant);
  }

  [[nodiscard]] Dependences dependences(const Expr& expr) const {
    if (expr.is_literal()) return all_constant();
    std::vector<Dependences> stack;
    for (const Expr::Node& node : expr.code()) {
      switch (node.op()) {
        case Expr::Op::negate:
          break;
        case Expr::Op::literal:
          stack.push_back(all_constant());
          break;
        case Expr::Op::axis: {
          Dependences dependences = all_constant();
          const plan::AxisId id(static_cast<std::int32_t>(node.operand()));
          for (const plan::AxisId axis : plan_.mesh.axes_of(id))
            dependences[axis.index()] = Dependence::affine;
          stack.push_back(std::move(dependences));
          break;
        }
        case Expr::Op::rank:
          stack.emplace_back(fixed_.size(), Dependence::affine);
          break;
        case Expr::Op::local:
          stack.push_back(locals_[node.operand()]);
          break;
        case Expr::Op::element:
          make_arbitrary(stack.back());
          break;
        case Expr::Op::end:
          return stack.back();
        default:
          combine(node.op(), stack);
      }
    }
    return stack.back();
  }

  static void make_arbitrary(Dependences& dependences) {
    for (Dependence& dependence : dependences)
      dependence = dependence == Dependence::constant ? dependence : Dependence::arbitrary;
  }

  static void combine(Expr::Op op, std::vector<Dependences>& stack) {
    Dependences right = std::move(stack.back());
    stack.pop_back();
    Dependences& left = stack.back();
    const bool adds = op == Expr::Op::add || op == Expr::Op::subtract;
    const auto is_constant = [](const Dependences& dependences) {
      return std::ranges::all_of(
          dependences, [](Dependence dependence) { return dependence == Dependence::constant; });
    };
    const bool is_affine =
        adds || (op == Expr::Op::multiply && (is_constant(left) || is_constant(right)));
    for (std::size_t k = 0; k < left.size(); ++k) left[k] = std::max(left[k], right[k]);
    if (!is_affine) make_arbitrary(left);
  }

  void require_constant(const Expr& expr) { require_at_most(expr, Dependence::constant); }
  void require_at_most(const Expr& expr, Dependence max) {
    const Dependences found = dependences(expr);
    for (std::size_t k = 0; k < found.size(); ++k) fixed_[k] = fixed_[k] || found[k] > max;
  }
  void fix_all_axes() { fixed_.assign(fixed_.size(), true); }
  void fix_axis(plan::AxisId id) {
    for (const plan::AxisId axis : plan_.mesh.axes_of(id)) fixed_[axis.index()] = true;
  }

  void select(const plan::Selector& selector) {
    for (const plan::SelectorTerm& term : selector.terms) {
      if (!term.axis.exists()) fix_all_axes();
      if (term.axis.exists()) fix_axis(term.axis);
    }
  }

  void block(const std::vector<plan::Statement>& body) {
    const std::size_t bound = locals_.size();
    for (const plan::Statement& statement : body) {
      std::visit([this](const auto& node) { visit(node); }, statement.node);
    }
    locals_.resize(bound);
  }

  void visit(const plan::Repeat& repeat) {
    require_constant(repeat.count);
    locals_.push_back(all_constant());
    block(repeat.body);
    locals_.pop_back();
  }
  void visit(const plan::When& when) {
    for (const plan::Comparison& comparison : when.condition) {
      require_constant(comparison.left);
      require_constant(comparison.right);
    }
    block(when.body);
  }
  // It is evaluated on every rank, even if it is unused. An expression that is not affine may have
  // no value on a rank that is not expanded (`100 div (dp-2)`).
  void visit(const plan::Let& let) {
    require_at_most(let.value, Dependence::affine);
    locals_.push_back(dependences(let.value));
  }
  void visit(const plan::Fact& fact) {
    visit(fact.region);
    visit(fact.value);
  }
  void visit(const plan::Operation& operation) {
    for (const Expr& index : operation.name.indices) require_constant(index);
    for (const plan::Reference& after : operation.after) {
      for (const Expr& index : after.indices) require_constant(index);
    }
    std::visit([this](const auto& action) { visit(action); }, operation.action);
    if (!operation.work) return;
    for (const Expr* amount :
         {&operation.work->flop, &operation.work->bytes, &operation.work->times}) {
      require_at_most(*amount, Dependence::affine);
    }
  }

  void visit(const plan::Region& region) {
    require_constant(region.begin);
    require_constant(region.count);
  }
  void visit(const plan::Value& value) {
    require_constant(value.index);
    for (const plan::Run& run : value.runs) {
      require_at_most(run.begin, run.list.exists() ? Dependence::constant : Dependence::affine);
      require_constant(run.count);
      require_constant(run.stride);
    }
  }
  void visit(const plan::Compute& compute) {
    for (const plan::Access& access : compute.accesses) {
      visit(access.region);
      visit(access.value);
    }
  }
  void visit(const plan::Copy& copy) {
    visit(copy.from);
    visit(copy.to);
  }
  void visit(const plan::Peer& peer) {
    if (peer.axis.exists()) fix_axis(peer.axis);
    require_at_most(peer.where, peer.axis.exists() ? Dependence::constant : Dependence::affine);
  }
  void visit(const plan::Send& send) {
    visit(send.from);
    visit(send.peer);
    require_constant(send.tag);
  }
  void visit(const plan::Receive& receive) {
    visit(receive.to);
    visit(receive.peer);
    require_constant(receive.tag);
  }
  void visit(const plan::Group& group) {
    if (group.positions.empty()) return;
    if (group.axes.empty()) fix_all_axes();
    for (const plan::AxisId axis : group.axes) fix_axis(axis);
    for (const Expr& position : group.positions) require_constant(position);
  }
  void visit(const plan::Collective& collective) {
    if (collective.kind != CollectiveKind::barrier) {
      visit(collective.from);
      visit(collective.to);
    }
    visit(collective.over);
    require_constant(collective.root);
  }
  void visit(const plan::Exchange&) { fix_all_axes(); }  // its table differs by rank
  void visit(const plan::Allocate& allocate) { visit(allocate.rows); }
  void visit(const plan::Free& free) { visit(free.rows); }
  void visit(const plan::Batch& batch) { block(batch.body); }

  const plan::Plan& plan_;
  std::vector<bool> fixed_;
  std::vector<Dependences> locals_;
};

bool same(const plan::flat::Region& a, const plan::flat::Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count && a.listed == b.listed;
}

// Compares the expansions of two ranks: the same operations, peers shifted with the rank, and the
// same groups or their translations. Throws Asymmetric if they differ otherwise.
class RankComparison {
 public:
  RankComparison(const plan::RankProgram& here, const plan::RankProgram& there)
      : here_(here), there_(there), shift_(there.rank.value - here.rank.value) {}

  void compare() const {
    require(here_.operations.size() == there_.operations.size() &&
            here_.runs.size() == there_.runs.size() &&
            here_.accesses.size() == there_.accesses.size() &&
            here_.dependencies == there_.dependencies &&
            here_.groups.size() == there_.groups.size() &&
            here_.given.size() == there_.given.size() && here_.goal.size() == there_.goal.size());
    for (std::size_t k = 0; k < here_.operations.size(); ++k) {
      throw_if_cancelled();
      const plan::flat::Operation& a = here_.operations[k];
      const plan::flat::Operation& b = there_.operations[k];
      require(a.source == b.source && a.group == b.group && a.root == b.root && a.tag == b.tag &&
              same(a.from, b.from) && same(a.to, b.to));
      require(!a.peer.exists() || b.peer.value == a.peer.value + shift_);
      // In place, the piece of the region differs by rank of the group.
      const auto* collective = std::get_if<plan::Collective>(&a.source->action);
      const bool in_place =
          collective != nullptr && has_pieces(collective->kind) && same(a.from, a.to);
      require(!in_place || !(here_.groups[a.group] == there_.groups[b.group]));
    }
    for (std::size_t k = 0; k < here_.accesses.size(); ++k) {
      require(same(here_.accesses[k].region, there_.accesses[k].region));
    }
  }

  // By how much the ranks of a group move.
  [[nodiscard]] std::int64_t group_shift(std::size_t k) const {
    const plan::flat::Group& a = here_.groups[k];
    const plan::flat::Group& b = there_.groups[k];
    require(a.channel == b.channel && a.ranks.size() == b.ranks.size());
    const std::int64_t shift = b.ranks[0].value - a.ranks[0].value;
    if (shift == 0) require(a.ranks == b.ranks);
    for (std::int64_t m = 0; m < a.ranks.size() && shift != 0; ++m) {
      require(b.ranks[m].value == a.ranks[m].value + shift);
    }
    return shift;
  }

 private:
  static void require(bool holds) {
    if (!holds) throw Asymmetric();
  }
  const plan::RankProgram& here_;
  const plan::RankProgram& there_;
  std::int64_t shift_;
};

}  // namespace

Symmetry find_symmetry(const plan::Plan& plan) {
  const DependenceAnalysis analysis(plan);
  Symmetry result;
  for (std::size_t k = 0; k < plan.mesh.axes.size(); ++k) {
    if (analysis.fixed()[k] || plan.mesh.axes[k].size == 1) continue;
    result.axes.emplace_back(k);
    result.sizes.push_back(plan.mesh.axes[k].size);
    result.strides.push_back(plan.mesh.stride(plan::AxisId(k)));
  }
  return result;
}

// The neighbour along each axis, and all corners; the rank itself is one of them.
std::int64_t expansions_of(const Symmetry& symmetry) {
  const std::size_t axes = std::min(symmetry.axes.size(), kMaxAxes);
  return static_cast<std::int64_t>(axes + (std::size_t{1} << axes));
}

// The neighbour along each axis determines the slopes; all corners must agree with them.
std::vector<SlopeId> slopes_of(const plan::RankProgram& program, const Symmetry& symmetry,
                               Slopes& slopes) {
  const std::size_t axes = symmetry.axes.size();
  if (axes == 0) return {};
  if (axes > kMaxAxes) throw Asymmetric();
  using Positions = std::vector<std::int64_t>;
  std::vector<Positions> of_runs(program.runs.size(), Positions(axes));
  std::vector<Positions> of_groups(program.groups.size(), Positions(axes));
  plan::RankProgram there;
  const auto visit = [&](const Positions& positions, const auto& run, const auto& group) {
    const std::int64_t shift = std::inner_product(positions.begin(), positions.end(),
                                                  symmetry.strides.begin(), std::int64_t{0});
    const Rank rank(static_cast<std::int32_t>(program.rank.value + shift));
    there = plan::expand(*program.plan, rank, program.program, {}, std::move(there));
    const RankComparison comparison(program, there);
    comparison.compare();
    for (std::size_t k = 0; k < of_runs.size(); ++k) {
      run(of_runs[k], there.runs[k].begin - program.runs[k].begin);
    }
    for (std::size_t k = 0; k < of_groups.size(); ++k) {
      group(of_groups[k], comparison.group_shift(k));
    }
  };
  for (std::size_t axis = 0; axis < axes; ++axis) {
    Positions positions(axes);
    positions[axis] = 1;
    const auto set_slope = [&](Positions& slope, std::int64_t moved) { slope[axis] = moved; };
    const auto set_group_slope = [&](Positions& slope, std::int64_t moved) {
      if (moved != 0 && moved != symmetry.strides[axis]) throw Asymmetric();
      slope[axis] = moved;
    };
    visit(positions, set_slope, set_group_slope);
  }
  for (std::size_t corner = 1; corner < std::size_t{1} << axes; ++corner) {
    Positions positions(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if ((corner >> axis & 1U) != 0) positions[axis] = symmetry.sizes[axis] - 1;
    }
    const auto check_slope = [&](const Positions& slope, std::int64_t moved) {
      const std::int64_t expected =
          std::inner_product(positions.begin(), positions.end(), slope.begin(), std::int64_t{0});
      if (moved != expected) throw Asymmetric();
    };
    visit(positions, check_slope, check_slope);
  }
  std::vector<SlopeId> result;
  result.reserve(of_runs.size());
  for (Positions& slope : of_runs) result.push_back(slopes.intern(std::move(slope)));
  return result;
}

}  // namespace shiplap::check
