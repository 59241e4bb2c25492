// The rule of symmetry: one rank stands for all along an axis only if a position enters nothing but
// where runs begin, and there as an affine function. Each edit leaves the first positions as they
// are.
#include <algorithm>
#include <functional>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Compute;
using plan::Expr;
using plan::Fact;
using plan::Operation;
using plan::Region;
using plan::Value;

namespace {

// Expressions of the position that are 0 at first and not at the end.
std::vector<Expr> bumps(const Site& site) {
  std::vector<Expr> all;
  for (std::size_t k = 0; k < site.plan.mesh.axes.size(); ++k) {
    const std::int64_t size = site.plan.mesh.axes[k].size;
    if (size < 2) continue;
    const Expr at = Expr::axis(plan::AxisId(k));
    all.push_back(div(at, size - 1));
    all.push_back(-div(at, size - 1));
    if (size > 2) all.push_back(at * (at - 1));
  }
  return all;
}

// Calls `visit` for every expression of the values and regions of a statement.
void expressions(plan::Statement& statement, const std::function<void(Expr&)>& visit) {
  const auto region = [&](Region& of) {
    if (of.kind != Region::Kind::whole) visit(of.begin);
  };
  const auto value = [&](Value& of) {
    if (of.indexed) visit(of.index);
    for (plan::Run& run : of.runs) visit(run.begin);
  };
  if (auto* fact = std::get_if<Fact>(&statement.node)) {
    region(fact->region);
    value(fact->value);
    return;
  }
  auto* operation = std::get_if<Operation>(&statement.node);
  if (operation == nullptr) return;
  if (auto* compute = std::get_if<Compute>(&operation->action)) {
    for (Access& access : compute->accesses) {
      region(access.region);
      value(access.value);
    }
  } else if (auto* call = std::get_if<plan::Collective>(&operation->action)) {
    if (call->kind == CollectiveKind::barrier) return;
    region(call->from);
    region(call->to);
    if (has_root(call->kind)) visit(call->root);
  } else if (auto* send = std::get_if<plan::Send>(&operation->action)) {
    region(send->from);
    visit(send->tag);
    visit(send->peer.where);
  } else if (auto* receive = std::get_if<plan::Receive>(&operation->action)) {
    region(receive->to);
    visit(receive->tag);
    visit(receive->peer.where);
  } else if (auto* copy = std::get_if<plan::Copy>(&operation->action)) {
    region(copy->from);
    region(copy->to);
  }
}

Edits differs_at_the_end(const Site& site) {
  plan::Statement statement = site.statement();
  std::size_t count = 0;
  expressions(statement, [&](Expr&) { ++count; });
  Edits edits;
  for (std::size_t chosen = 0; chosen < count; ++chosen) {
    for (const Expr& bump : bumps(site)) {
      plan::Statement other = site.statement();
      std::size_t k = 0;
      expressions(other, [&](Expr& expr) {
        if (k++ == chosen) expr = expr + bump;
      });
      edits.push_back({.with = {std::move(other)}});
    }
  }
  return edits;
}

// ---- in all values of a program, so that each rank alone is right

Expr substituted(const Expr& expr, plan::AxisId axis, const Expr& by) {
  using Op = Expr::Op;
  if (expr.is_literal()) return expr;
  std::vector<Expr> stack;
  const auto pop = [&] {
    Expr top = stack.back();
    stack.pop_back();
    return top;
  };
  for (const Expr::Node& node : expr.code()) {
    switch (node.op()) {
      case Op::end:
        break;
      case Op::literal:
        stack.emplace_back(node.operand());
        break;
      case Op::axis:
        stack.push_back(node.operand() == axis.value
                            ? by
                            : Expr::axis(plan::AxisId(static_cast<std::int32_t>(node.operand()))));
        break;
      case Op::rank:
        stack.push_back(Expr::rank());
        break;
      case Op::local:
        stack.push_back(Expr::local(plan::LocalId(static_cast<std::int32_t>(node.operand()))));
        break;
      case Op::element:
        stack.push_back(
            Expr::element(plan::ListId(static_cast<std::int32_t>(node.operand())), pop()));
        break;
      case Op::negate:
        stack.push_back(-pop());
        break;
      default: {
        const Expr right = pop();
        const Expr left = pop();
        stack.push_back(Expr::combine(node.op(), left, right));
      }
    }
  }
  return stack.back();
}

void substitute(Value& value, plan::AxisId axis, const Expr& by) {
  for (plan::Run& run : value.runs) run.begin = substituted(run.begin, axis, by);
}

void substitute(Statements& block, plan::AxisId axis, const Expr& by) {
  for (plan::Statement& statement : block) {
    if (auto* fact = std::get_if<Fact>(&statement.node)) {
      substitute(fact->value, axis, by);
    } else if (auto* let = std::get_if<plan::Let>(&statement.node)) {
      let->value = substituted(let->value, axis, by);
    } else if (auto* repeat = std::get_if<plan::Repeat>(&statement.node)) {
      substitute(repeat->body, axis, by);
    } else if (auto* when = std::get_if<plan::When>(&statement.node)) {
      substitute(when->body, axis, by);
    } else if (auto* operation = std::get_if<Operation>(&statement.node)) {
      auto* compute = std::get_if<Compute>(&operation->action);
      if (compute == nullptr) continue;
      for (Access& access : compute->accesses) substitute(access.value, axis, by);
    }
  }
}

// Every rank holds other parts than it should, and all that it states of itself agrees.
Edits other_position_throughout(const Site& site) {
  if (&site.block != &site.program.body || site.index != 0) return {};
  Edits edits;
  for (std::size_t k = 0; k < site.plan.mesh.axes.size(); ++k) {
    const std::int64_t size = site.plan.mesh.axes[k].size;
    if (size < 2) continue;
    const plan::AxisId axis(k);
    const Expr at = Expr::axis(axis);
    std::vector<Expr> all{at - div(at, size - 1), Expr(size - 1) - at, Expr(0), mod(at + 1, size)};
    if (size > 2) all.push_back(mod(at, size - 1));
    for (const Expr& by : all) {
      Edit edit{.with = site.block, .count = site.block.size()};
      substitute(edit.with, axis, by);
      if (edit.with == site.block) continue;
      edits.push_back(std::move(edit));
    }
  }
  return edits;
}

}  // namespace

void add_corner_rules(Rules& rules) {
  const std::string rule = "a representative rank covers all symmetric ranks";
  rules.push_back({rule,
                   "an expression that differs at the last position",
                   {},
                   differs_at_the_end,
                   {Extent::all}});
  rules.push_back({rule,
                   "the parts of another position throughout",
                   {},
                   other_position_throughout,
                   {Extent::all}});
}

}  // namespace shiplap::mutations
