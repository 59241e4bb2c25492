#include <map>
#include <utility>

#include "shiplap/plan/influence_internal.h"

namespace shiplap::plan {
namespace {

using AxisSet = std::vector<bool>;  // by axis

void unite(AxisSet& into, const AxisSet& more) {
  for (std::size_t k = 0; k < into.size(); ++k) into[k] = into[k] || more[k];
}

class Influence {
 public:
  Influence(const Plan& plan, const Program& program) : plan_(plan), axes_(plan.mesh.axes.size()) {
    for (const Buffer& buffer : program.buffers) {
      decides(buffer.rows);
      decides(buffer.row_bytes);
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

  void decides(const Expr& expr) { unite(axes_, axes_in(expr)); }
  void everything_decides() { axes_.assign(axes_.size(), true); }

  void decides(const Region& region) {
    decides(region.count);
    if (region.kind == Region::Kind::cut) decides(region.begin);
  }

  void block(const std::vector<Statement>& body) {
    const std::size_t bound = locals_.size();
    for (const Statement& statement : body) {
      std::visit([this](const auto& node) { look(node); }, statement.node);
    }
    locals_.resize(bound);
  }

  void look(const Repeat& repeat) {
    decides(repeat.count);
    locals_.emplace_back(axes_.size());  // counts alike everywhere, given the same number of times
    block(repeat.body);
    locals_.pop_back();
  }

  void look(const When& when) {
    for (const Comparison& comparison : when.condition) {
      decides(comparison.left);
      decides(comparison.right);
    }
    block(when.body);
  }

  void look(const Let& let) { locals_.push_back(axes_in(let.value)); }
  void look(const Fact&) {}

  void look(const Operation& operation) {
    std::visit([this](const auto& action) { look(action); }, operation.action);
  }

  void look(const Compute&) {}
  void look(const Copy&) {}
  void look(const Send& send) {
    decides(send.from);
    if (!send.peer.axis.exists()) everything_decides();  // which axes it crosses, and whether any
    if (send.peer.axis.exists()) decides(send.peer.where);
  }
  void look(const Receive&) {}
  void look(const Collective& collective) {
    decides(collective.from);
    decides(collective.to);
  }
  void look(const Exchange&) { everything_decides(); }  // its bytes stand in a table, by rank
  void look(const Allocate& allocate) {
    decides(allocate.rows);
    decides(allocate.rows.begin);
  }
  void look(const Free& free) {
    decides(free.rows);
    decides(free.rows.begin);
  }
  void look(const Batch& batch) { block(batch.body); }

  const Plan& plan_;
  AxisSet axes_;
  std::vector<AxisSet> locals_;
};

}  // namespace

std::vector<std::vector<Rank>> ranks_alike(const Plan& plan, const Program& program,
                                           const std::vector<Rank>& ranks) {
  const Influence influence(plan, program);
  std::map<std::int64_t, std::vector<Rank>> sets;
  for (const Rank rank : ranks) {
    std::int64_t rest = rank.value;
    std::int64_t key = 0;
    std::int64_t stride = 1;
    for (std::size_t k = plan.mesh.axes.size(); k-- > 0;) {
      const std::int64_t size = plan.mesh.axes[k].size;
      if (influence.axes()[k]) key += rest % size * stride;
      stride *= size;
      rest /= size;
    }
    sets[key].push_back(rank);
  }
  std::vector<std::vector<Rank>> result;
  result.reserve(sets.size());
  for (auto& [key, alike] : sets) result.push_back(std::move(alike));
  return result;
}

}  // namespace shiplap::plan
