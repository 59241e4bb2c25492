// Symmetry reduction: which ranks differ only in their values.
//
// Problem: a mesh can have 131,072 ranks, and most of them differ only in coordinates:
// data-parallel rank r holds the samples [r*b, (r+1)*b).
//
// Idea: an affine dependence analysis (an abstract interpretation; compare affine dependence in
// loop optimization, Banerjee 1988). Each expression is constant, affine or arbitrary in the
// position on each axis. Expressions that decide control flow, sizes, rows, peers on an axis or
// names must be constant, coordinates may be affine. Otherwise the axis is fixed: ranks at
// different positions represent themselves.
//
// Why this suffices for times and matching: moving all ranks along the other axes maps the linked
// program onto itself. Operation k of a rank becomes operation k of its image, because nothing that
// decides which operations there are depends on those axes; a peer moves with its rank, and a group
// either spans an axis whole or moves with its members. What remains to be shown is left to the
// callers: that the images cost the same (sim/folding.cc), that their values do
// (check/symmetry.cc).
#include "shiplap/plan/symmetry.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

namespace shiplap::plan {
namespace {

// How an expression depends on the position on an axis.
enum class Dependence : std::uint8_t { constant, affine, arbitrary };
using Dependences = std::vector<Dependence>;  // by axis

class DependenceAnalysis {
 public:
  DependenceAnalysis(const Plan& plan, const SymmetryOptions& options)
      : plan_(plan), options_(options), fixed_(plan.mesh.axes.size()) {
    for (const Program& program : plan.programs) {
      select(program.on);
      for (const Buffer& buffer : program.buffers) {
        require_constant(buffer.rows);
        require_constant(buffer.row_bytes);
      }
      block(program.body);
    }
    for (const Selector& spare : plan.spares) select(spare);
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
          const AxisId id(static_cast<std::int32_t>(node.operand()));
          for (const AxisId axis : plan_.mesh.axes_of(id))
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
  void fix_axis(AxisId id) {
    for (const AxisId axis : plan_.mesh.axes_of(id)) fixed_[axis.index()] = true;
  }

  void select(const Selector& selector) {
    for (const SelectorTerm& term : selector.terms) {
      if (!term.axis.exists()) fix_all_axes();
      if (term.axis.exists()) fix_axis(term.axis);
    }
  }

  void block(const std::vector<Statement>& body) {
    const std::size_t bound = locals_.size();
    for (const Statement& statement : body) {
      std::visit([this](const auto& node) { visit(node); }, statement.node);
    }
    locals_.resize(bound);
  }

  void visit(const Repeat& repeat) {
    require_constant(repeat.count);
    locals_.push_back(all_constant());
    block(repeat.body);
    locals_.pop_back();
  }
  void visit(const When& when) {
    for (const Comparison& comparison : when.condition) {
      require_constant(comparison.left);
      require_constant(comparison.right);
    }
    block(when.body);
  }
  // It is evaluated on every rank, even if it is unused. An expression that is not affine may have
  // no value on a rank that is not expanded (`100 div (dp-2)`).
  void visit(const Let& let) {
    require_at_most(let.value, Dependence::affine);
    locals_.push_back(dependences(let.value));
  }
  void visit(const Fact& fact) {
    visit(fact.region);
    visit(fact.value);
  }
  void visit(const Operation& operation) {
    for (const Expr& index : operation.name.indices) require_constant(index);
    for (const Reference& after : operation.after) {
      for (const Expr& index : after.indices) require_constant(index);
    }
    std::visit([this](const auto& action) { visit(action); }, operation.action);
    if (!operation.work) return;
    for (const Expr* amount :
         {&operation.work->flop, &operation.work->bytes, &operation.work->times}) {
      require_at_most(*amount, options_.same_work ? Dependence::constant : Dependence::affine);
    }
  }

  void visit(const Region& region) {
    require_constant(region.begin);
    require_constant(region.count);
  }
  void visit(const Value& value) {
    require_constant(value.index);
    for (const Run& run : value.runs) {
      require_at_most(run.begin, run.list.exists() ? Dependence::constant : Dependence::affine);
      require_constant(run.count);
      require_constant(run.stride);
    }
  }
  void visit(const Compute& compute) {
    for (const Access& access : compute.accesses) {
      visit(access.region);
      visit(access.value);
    }
  }
  void visit(const Copy& copy) {
    visit(copy.from);
    visit(copy.to);
  }
  void visit(const Peer& peer) {
    if (peer.axis.exists()) fix_axis(peer.axis);
    require_at_most(peer.where, peer.axis.exists() ? Dependence::constant : Dependence::affine);
  }
  void visit(const Send& send) {
    visit(send.from);
    visit(send.peer);
    require_constant(send.tag);
  }
  void visit(const Receive& receive) {
    visit(receive.to);
    visit(receive.peer);
    require_constant(receive.tag);
  }
  void visit(const Group& group) {
    if (group.positions.empty()) return;
    if (group.axes.empty()) fix_all_axes();
    for (const AxisId axis : group.axes) fix_axis(axis);
    for (const Expr& position : group.positions) require_constant(position);
  }
  void visit(const Collective& collective) {
    if (collective.kind != CollectiveKind::barrier) {
      visit(collective.from);
      visit(collective.to);
    }
    visit(collective.over);
    require_constant(collective.root);
  }
  void visit(const Exchange&) { fix_all_axes(); }  // its table differs by rank
  void visit(const Allocate& allocate) { visit(allocate.rows); }
  void visit(const Free& free) { visit(free.rows); }
  void visit(const Batch& batch) { block(batch.body); }

  const Plan& plan_;
  const SymmetryOptions& options_;
  std::vector<bool> fixed_;
  std::vector<Dependences> locals_;
};

}  // namespace

std::int32_t Symmetry::representative(std::int32_t rank) const {
  std::int64_t result = rank;
  for (std::size_t k = 0; k < axes.size(); ++k) {
    result -= rank / strides[k] % sizes[k] * strides[k];
  }
  return static_cast<std::int32_t>(result);
}

std::vector<std::int64_t> Symmetry::positions(std::int32_t rank) const {
  std::vector<std::int64_t> result;
  for (std::size_t k = 0; k < axes.size(); ++k) result.push_back(rank / strides[k] % sizes[k]);
  return result;
}

bool Symmetry::is_spanned(std::size_t k, const RankSet& group) const {
  return group.find(Rank(static_cast<std::int32_t>(group[0].value + strides[k]))) >= 0;
}

std::int64_t Symmetry::class_size() const {
  std::int64_t result = 1;
  for (const std::int64_t size : sizes) result *= size;
  return result;
}

void Symmetry::drop(AxisId axis) {
  const auto found = std::ranges::find(axes, axis) - axes.begin();
  axes.erase(axes.begin() + found);
  strides.erase(strides.begin() + found);
  sizes.erase(sizes.begin() + found);
}

void Symmetry::drop_smallest() { drop(axes[std::ranges::min_element(sizes) - sizes.begin()]); }

std::vector<Image> images_of(const Symmetry& symmetry) {
  constexpr std::size_t kMaxAxes = 6;  // 64 corners
  const std::size_t axes = symmetry.axes.size();
  if (axes > kMaxAxes) throw Asymmetric();
  std::vector<Image> images;
  const auto add = [&](std::vector<std::int64_t> positions) {
    const std::int64_t shift = std::inner_product(positions.begin(), positions.end(),
                                                  symmetry.strides.begin(), std::int64_t{0});
    images.push_back({.positions = std::move(positions), .shift = shift});
  };
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<std::int64_t> positions(axes);
    positions[axis] = 1;
    add(std::move(positions));
  }
  for (std::size_t corner = 1; corner < std::size_t{1} << axes; ++corner) {
    std::vector<std::int64_t> positions(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if ((corner >> axis & 1U) != 0) positions[axis] = symmetry.sizes[axis] - 1;
    }
    // On an axis of two positions, the neighbour is a corner.
    const std::int64_t steps = std::reduce(positions.begin(), positions.end());
    if (steps > 1) add(std::move(positions));
  }
  return images;
}

Symmetry find_symmetry(const Plan& plan, const SymmetryOptions& options) {
  const DependenceAnalysis analysis(plan, options);
  Symmetry result;
  for (std::size_t k = 0; k < plan.mesh.axes.size(); ++k) {
    if (analysis.fixed()[k] || plan.mesh.axes[k].size == 1) continue;
    result.axes.emplace_back(k);
    result.sizes.push_back(plan.mesh.axes[k].size);
    result.strides.push_back(plan.mesh.stride(AxisId(k)));
  }
  return result;
}

}  // namespace shiplap::plan
