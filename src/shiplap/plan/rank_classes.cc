// A dependence analysis: which mesh axes can change the number or the bytes of the operations of a
// rank? Axes flow through `let` names into counts of loops, conditions, region sizes and peers.
#include <map>
#include <utility>

#include "shiplap/plan/rank_classes_internal.h"

namespace shiplap::plan {
namespace {

using AxisSet = std::vector<bool>;  // by axis

void unite(AxisSet& into, const AxisSet& more) {
  for (std::size_t k = 0; k < into.size(); ++k) into[k] = into[k] || more[k];
}

class AxisDependence {
 public:
  AxisDependence(const Plan& plan, const Program& program)
      : plan_(plan), axes_(plan.mesh.axes.size()) {
    for (const Buffer& buffer : program.buffers) {
      depends_on(buffer.rows);
      depends_on(buffer.row_bytes);
    }
    block(program.body);
  }

  [[nodiscard]] const AxisSet& axes() const { return axes_; }

 private:
  [[nodiscard]] AxisSet axes_in(const Expr& expr) const {
    AxisSet result(axes_.size());
    for (const Expr::Node& node : expr.code()) {
      if (node.op() == Expr::Op::rank) result.assign(result.size(), true);
      if (node.op() == Expr::Op::local) unite(result, locals_[node.operand()]);
      if (node.op() != Expr::Op::axis) continue;
      for (const AxisId axis :
           plan_.mesh.axes_of(AxisId(static_cast<std::int32_t>(node.operand()))))
        result[axis.index()] = true;
    }
    return result;
  }

  void depends_on(const Expr& expr) { unite(axes_, axes_in(expr)); }
  void depends_on_all() { axes_.assign(axes_.size(), true); }

  void depends_on(const Region& region) {
    depends_on(region.count);
    if (region.kind == Region::Kind::cut) depends_on(region.begin);
  }

  void block(const std::vector<Statement>& body) {
    const std::size_t bound = locals_.size();
    for (const Statement& statement : body) {
      std::visit([this](const auto& node) { visit(node); }, statement.node);
    }
    locals_.resize(bound);
  }

  void visit(const Repeat& repeat) {
    depends_on(repeat.count);
    locals_.emplace_back(axes_.size());  // the same values on all ranks, given the count
    block(repeat.body);
    locals_.pop_back();
  }

  void visit(const When& when) {
    for (const Comparison& comparison : when.condition) {
      depends_on(comparison.left);
      depends_on(comparison.right);
    }
    block(when.body);
  }

  void visit(const Let& let) { locals_.push_back(axes_in(let.value)); }
  void visit(const Fact&) {}

  void visit(const Operation& operation) {
    std::visit([this](const auto& action) { visit(action); }, operation.action);
  }

  void visit(const Compute&) {}
  void visit(const Copy&) {}
  void visit(const Send& send) {
    depends_on(send.from);
    if (!send.peer.axis.exists()) depends_on_all();  // which axes it crosses, and whether any
    if (send.peer.axis.exists()) depends_on(send.peer.where);
  }
  void visit(const Receive&) {}
  void visit(const Collective& collective) {
    depends_on(collective.from);
    depends_on(collective.to);
  }
  void visit(const Exchange&) { depends_on_all(); }  // its bytes are in a table, by rank
  void visit(const Allocate& allocate) {
    depends_on(allocate.rows);
    depends_on(allocate.rows.begin);
  }
  void visit(const Free& free) {
    depends_on(free.rows);
    depends_on(free.rows.begin);
  }
  void visit(const Batch& batch) { block(batch.body); }

  const Plan& plan_;
  AxisSet axes_;
  std::vector<AxisSet> locals_;
};

}  // namespace

std::vector<std::vector<Rank>> rank_classes(const Plan& plan, const Program& program,
                                            const std::vector<Rank>& ranks) {
  const AxisDependence dependence(plan, program);
  std::map<std::int64_t, std::vector<Rank>> sets;
  for (const Rank rank : ranks) {
    std::int64_t rest = rank.value;
    std::int64_t key = 0;
    std::int64_t stride = 1;
    for (std::size_t k = plan.mesh.axes.size(); k-- > 0;) {
      const std::int64_t size = plan.mesh.axes[k].size;
      if (dependence.axes()[k]) key += rest % size * stride;
      stride *= size;
      rest /= size;
    }
    sets[key].push_back(rank);
  }
  std::vector<std::vector<Rank>> result;
  result.reserve(sets.size());
  for (auto& [key, members] : sets) result.push_back(std::move(members));
  return result;
}

}  // namespace shiplap::plan
