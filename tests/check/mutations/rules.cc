#include "rules.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "rules_internal.h"
#include "shiplap/base/random.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Batch;
using plan::Compute;
using plan::Expr;
using plan::Operation;
using plan::Plan;
using plan::Repeat;
using plan::Run;
using plan::Statement;
using plan::Value;
using plan::When;

const std::vector<RuleMutation>& all_rule_mutations() {
  static const Rules kAll = [] {
    Rules rules;
    add_statement_rules(rules);
    add_kernel_rules(rules);
    add_linear_rules(rules);
    add_flow_rules(rules);
    add_memory_rules(rules);
    add_order_rules(rules);
    add_matching_rules(rules);
    add_declared_rules(rules);
    add_corner_rules(rules);
    return rules;
  }();
  return kAll;
}

// ---- positions of statements

namespace {

// Which program, then which statement of each block.
struct Path {
  std::size_t program = 0;
  std::vector<std::size_t> indices;
};

template <class Node>
auto* body_of(Node& statement) {
  using Body = std::conditional_t<std::is_const_v<Node>, const Statements, Statements>;
  Body* body = nullptr;
  if (auto* repeat = std::get_if<Repeat>(&statement.node)) body = &repeat->body;
  if (auto* when = std::get_if<When>(&statement.node)) body = &when->body;
  if (auto* operation = std::get_if<Operation>(&statement.node)) {
    if (auto* batch = std::get_if<Batch>(&operation->action)) body = &batch->body;
  }
  return body;
}

void walk(const Statements& block, Path& path, const std::function<void(const Path&)>& visit) {
  for (std::size_t k = 0; k < block.size(); ++k) {
    path.indices.push_back(k);
    visit(path);
    if (const auto* body = body_of(block[k])) walk(*body, path, visit);
    path.indices.pop_back();
  }
}

std::vector<Path> paths(const Plan& plan) {
  std::vector<Path> all;
  for (std::size_t k = 0; k < plan.programs.size(); ++k) {
    Path path{.program = k};
    walk(plan.programs[k].body, path, [&](const Path& found) { all.push_back(found); });
  }
  return all;
}

template <class AnyPlan>
auto& block_of(AnyPlan& plan, const Path& path) {
  auto* block = &plan.programs[path.program].body;
  for (std::size_t k = 0; k + 1 < path.indices.size(); ++k) {
    block = body_of((*block)[path.indices[k]]);
  }
  return *block;
}

When at_last(plan::AxisId axis, std::int64_t size, bool is_last, Statements body) {
  return {.condition = {{Expr::axis(axis),
                         is_last ? plan::Comparator::equal : plan::Comparator::not_equal,
                         Expr(size - 1)}},
          .body = std::move(body)};
}

void replace(Plan& plan, const Path& path, const Edit& edit, plan::AxisId axis) {
  Statements& block = block_of(plan, path);
  const auto first = block.begin() + static_cast<std::ptrdiff_t>(path.indices.back());
  const auto last = first + static_cast<std::ptrdiff_t>(edit.count);
  Statements with = edit.with;
  if (axis.exists()) {
    const std::int64_t size = plan.mesh.size(axis);
    with = {{at_last(axis, size, false, Statements(first, last))},
            {at_last(axis, size, true, edit.with)}};
  }
  const auto after = block.erase(first, last);
  block.insert(after, with.begin(), with.end());
  if (!edit.redeclared.empty()) plan.tensors = edit.redeclared;
  plan.tensors.insert(plan.tensors.end(), edit.tensors.begin(), edit.tensors.end());
  auto& buffers = plan.programs[path.program].buffers;
  buffers.insert(buffers.end(), edit.buffers.begin(), edit.buffers.end());
}

// Which axes of more than one position there are: of one, the last is all.
std::vector<plan::AxisId> wide_axes(const Plan& plan) {
  std::vector<plan::AxisId> all;
  for (std::size_t k = 0; k < plan.mesh.axes.size(); ++k) {
    if (plan.mesh.axes[k].size > 1) all.emplace_back(k);
  }
  return all;
}

// A `let` holds to the end of its block, so it cannot go into one of its own.
bool has_let(const Site& site, const Edit& edit) {
  const auto is_let = [](const Statement& statement) {
    return std::holds_alternative<plan::Let>(statement.node);
  };
  const auto first = site.block.begin() + static_cast<std::ptrdiff_t>(site.index);
  return std::any_of(first, first + static_cast<std::ptrdiff_t>(edit.count), is_let);
}

}  // namespace

std::vector<RuleMutant> rule_mutants(const RuleMutation& mutation, const Plan& plan, Extent extent,
                                     std::size_t max_count, std::uint64_t seed) {
  struct Candidate {
    Path path;
    Edit edit;
    plan::AxisId axis;
  };
  std::vector<Candidate> candidates;
  const std::vector<plan::AxisId> axes = wide_axes(plan);
  for (const Path& path : paths(plan)) {
    const Site site{.plan = plan,
                    .program = plan.programs[path.program],
                    .block = block_of(plan, path),
                    .index = path.indices.back()};
    for (Edit& edit : mutation.edits(site)) {
      if (extent != Extent::corner) {
        candidates.push_back({path, std::move(edit), {}});
        continue;
      }
      if (has_let(site, edit)) continue;
      for (const plan::AxisId axis : axes) candidates.push_back({path, edit, axis});
    }
  }
  Random(seed).shuffle(candidates);
  if (candidates.size() > max_count) candidates.resize(max_count);
  std::vector<RuleMutant> mutants;
  for (const Candidate& candidate : candidates) {
    RuleMutant mutant{.plan = plan,
                      .where = plan.programs[candidate.path.program].name + ", statement"};
    for (const std::size_t index : candidate.path.indices) {
      mutant.where += " " + std::to_string(index);
    }
    if (candidate.axis.exists()) {
      mutant.where += ", at the end of " + plan.mesh.name(candidate.axis);
    }
    replace(mutant.plan, candidate.path, candidate.edit, candidate.axis);
    mutants.push_back(std::move(mutant));
  }
  return mutants;
}

// ---- what the rules share

const Operation* operation_at(const Site& site) {
  return std::get_if<Operation>(&site.statement().node);
}

const Compute* compute_at(const Site& site) { return action_at<Compute>(site); }

const plan::Tensor& tensor_of(const Site& site, const Value& value) {
  return site.plan.tensors[value.tensor];
}

Statements instead_of(const Operation& operation, const std::vector<plan::Action>& actions) {
  Statements all;
  for (std::size_t k = 0; k < actions.size(); ++k) {
    Operation each = operation;
    if (k > 0) each.after.clear();
    if (k + 1 < actions.size()) {
      each.name = {};
      each.async = false;
    }
    each.joined = each.joined && k == 0;
    each.action = actions[k];
    if (!std::holds_alternative<Compute>(each.action)) each.joined = false;
    if (!std::holds_alternative<Compute>(each.action)) each.work.reset();
    if (std::holds_alternative<Compute>(each.action)) each.async = false;
    all.push_back({std::move(each)});
  }
  return all;
}

Access reads(const plan::Region& region, const Value& value) {
  return {.kind = Access::Kind::reads, .region = region, .value = value};
}

Access writes(const plan::Region& region, const Value& value) {
  return {.kind = Access::Kind::writes, .region = region, .value = value};
}

Compute convert(std::string kernel, const plan::Region& region, const Value& from,
                const Value& to) {
  return {.kernel = std::move(kernel), .accesses = {reads(region, from), writes(region, to)}};
}

bool is_only_access(const Compute& compute, std::size_t access) {
  for (std::size_t k = 0; k < compute.accesses.size(); ++k) {
    if (k == access || compute.accesses[k].region.buffer != compute.accesses[access].region.buffer)
      continue;
    const plan::Region& a = compute.accesses[k].region;
    const plan::Region& b = compute.accesses[access].region;
    const bool apart = a.kind == plan::Region::Kind::rows && b.kind == plan::Region::Kind::rows &&
                       a.begin.is_literal() && b.begin.is_literal() && a.count.is_literal() &&
                       b.count.is_literal() &&
                       (a.begin.literal() + a.count.literal() <= b.begin.literal() ||
                        b.begin.literal() + b.count.literal() <= a.begin.literal());
    if (!apart) return false;
  }
  return true;
}

std::optional<Scratch> scratch(const Site& site, const plan::Region& region) {
  const plan::Buffer& of = site.program.buffers[region.buffer];
  if (region.kind != plan::Region::Kind::whole &&
      (region.kind != plan::Region::Kind::rows || !region.count.is_literal())) {
    return std::nullopt;
  }
  Scratch result{.buffer = of, .region = {.buffer = plan::BufferId(site.program.buffers.size())}};
  result.buffer.name = "scratch";
  if (region.kind == plan::Region::Kind::rows) {
    result.buffer.rows = region.count;
    result.region.kind = plan::Region::Kind::rows;
    result.region.begin = 0;
    result.region.count = region.count;
  }
  return result;
}

// ---- other values

namespace {

const plan::Tensor& tensor_in(const Plan& plan, const Value& value) {
  return plan.tensors[value.tensor];
}

// The only run of its dimension.
bool is_single(const Value& value, const Run& run) {
  return std::ranges::count(value.runs, run.dimension, &Run::dimension) == 1;
}

// The runs of the part, or of the sum, begun one further (round the end).
std::vector<Value> moved(const Plan& plan, const Value& value, bool sum) {
  std::vector<Value> all;
  const plan::Tensor& tensor = tensor_in(plan, value);
  for (std::size_t k = 0; k < value.runs.size(); ++k) {
    const Run& run = value.runs[k];
    const std::int64_t size = tensor.dimension(run.dimension).size;
    if (tensor.in_sum(run.dimension) != sum || run.list.exists() || !is_single(value, run) ||
        !run.count.is_literal() || !run.stride.is_literal() || run.count.literal() < 1) {
      continue;
    }
    const std::int64_t reach = (run.count.literal() - 1) * run.stride.literal() + 1;
    if (run.stride.literal() < 1 || reach >= size) continue;
    all.push_back(value);
    all.back().runs[k].begin = mod(run.begin + 1, size - reach + 1);
  }
  return all;
}

}  // namespace

std::vector<Value> with_other_instance(const Plan& plan, const Value& value) {
  const std::int64_t instances = tensor_in(plan, value).instances;
  if (!value.indexed || instances < 2) return {};
  Value other = value;
  other.index = mod(value.index + 1, instances);
  return {other};
}

std::vector<Value> with_other_part(const Plan& plan, const Value& value) {
  return moved(plan, value, false);
}

std::vector<Value> with_other_contributions(const Plan& plan, const Value& value) {
  return moved(plan, value, true);
}

std::vector<Value> with_fewer_contributions(const Plan& plan, const Value& value) {
  const plan::Tensor& tensor = tensor_in(plan, value);
  std::vector<Value> all;
  if (value.sum == plan::Sum::none) return {};
  for (std::size_t k = 0; k < tensor.sum.size(); ++k) {
    const plan::DimensionId id(tensor.part.size() + k);
    const auto run = std::ranges::find(value.runs, id, &Run::dimension);
    Value other = value;
    if (run == value.runs.end()) {
      if (tensor.sum[k].size < 2) continue;
      // In the order of the existing dimensions.
      other.sum = plan::Sum::some;
      other.runs.push_back({.dimension = id, .begin = 1, .count = tensor.sum[k].size - 1});
    } else {
      if (run->list.exists() || !run->count.is_literal() || run->count.literal() < 2) continue;
      Run& there = other.runs[run - value.runs.begin()];
      there.count = run->count.literal() - 1;
    }
    all.push_back(std::move(other));
  }
  return all;
}

std::vector<Value> with_more_contributions(const Plan& plan, const Value& value) {
  const plan::Tensor& tensor = tensor_in(plan, value);
  if (value.sum != plan::Sum::some) return {};
  Value other = value;
  std::erase_if(other.runs, [&](const Run& run) { return tensor.in_sum(run.dimension); });
  other.sum = plan::Sum::complete;
  return {other};
}

std::vector<Value> with_no_contributions(const Plan& plan, const Value& value) {
  const plan::Tensor& tensor = tensor_in(plan, value);
  if (tensor.sum.empty() || value.sum == plan::Sum::none) return {};
  Value other = value;
  std::erase_if(other.runs, [&](const Run& run) { return tensor.in_sum(run.dimension); });
  other.sum = plan::Sum::none;
  other.scale = {};
  return {other};
}

std::vector<Value> with_other_scale(const Plan&, const Value& value) {
  if (value.sum == plan::Sum::none) return {};
  Value other = value;
  other.scale = plan::Ratio(value.scale.numerator(), 3 * value.scale.denominator());
  return {other};
}

std::vector<Value> with_other_version(const Plan& plan, const Value& value) {
  if (!tensor_in(plan, value).has_versions()) return {};
  Value other = value;
  other.is_new = !value.is_new;
  return {other};
}

}  // namespace shiplap::mutations
