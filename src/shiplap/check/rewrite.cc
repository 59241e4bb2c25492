#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "shiplap/base/error.h"
#include "shiplap/check/rewrite_internal.h"

namespace shiplap::check {
namespace {

using Body = std::vector<plan::Statement>;

// Of a batch, `repeat` or `when`; else null.
template <class S>
auto block_of(S& statement) -> decltype(&std::get<plan::When>(statement.node).body) {
  if (auto* when = std::get_if<plan::When>(&statement.node)) return &when->body;
  if (auto* repeat = std::get_if<plan::Repeat>(&statement.node)) return &repeat->body;
  auto* operation = std::get_if<plan::Operation>(&statement.node);
  if (operation == nullptr) return nullptr;
  auto* batch = std::get_if<plan::Batch>(&operation->action);
  return batch == nullptr ? nullptr : &batch->body;
}

// The block that contains a statement.
template <class P>
auto& body_of(P& plan, const StatementPath& path) {
  auto* body = &plan.programs[path.program].body;
  for (std::size_t k = 0; k + 1 < path.indices.size(); ++k)
    body = block_of((*body)[path.indices[k]]);
  return *body;
}

bool search(const Body& body, const plan::Operation& operation, std::vector<std::size_t>& indices) {
  for (std::size_t k = 0; k < body.size(); ++k) {
    indices.push_back(k);
    if (std::get_if<plan::Operation>(&body[k].node) == &operation) return true;
    const Body* block = block_of(body[k]);
    if (block != nullptr && search(*block, operation, indices)) return true;
    indices.pop_back();
  }
  return false;
}

template <class Visit>
void for_each_operation(Body& body, const Visit& visit) {
  for (plan::Statement& statement : body) {
    if (auto* operation = std::get_if<plan::Operation>(&statement.node)) visit(*operation);
    if (Body* block = block_of(statement)) for_each_operation(*block, visit);
  }
}

bool same_block(const StatementPath& a, const StatementPath& b) {
  return a.program == b.program && a.indices.size() == b.indices.size() &&
         std::equal(a.indices.begin(), a.indices.end() - 1, b.indices.begin());
}

// A statement cannot move across a `let`, which adds a name.
bool can_move(const plan::Plan& plan, const OperationPair& pair) {
  if (!same_block(pair.first, pair.second) || pair.first.indices >= pair.second.indices)
    return false;
  const Body& body = body_of(plan, pair.first);
  const auto begin = body.begin() + static_cast<std::ptrdiff_t>(pair.first.indices.back());
  const auto end = body.begin() + static_cast<std::ptrdiff_t>(pair.second.indices.back());
  return std::none_of(begin, end, [](const plan::Statement& statement) {
    return std::holds_alternative<plan::Let>(statement.node);
  });
}

// Whether only batches enclose the statement, no `repeat` or `when`.
bool in_plain_blocks(const plan::Plan& plan, const StatementPath& path) {
  const Body* body = &plan.programs[path.program].body;
  for (std::size_t k = 0; k + 1 < path.indices.size(); ++k) {
    const plan::Statement& statement = (*body)[path.indices[k]];
    if (!std::holds_alternative<plan::Operation>(statement.node)) return false;
    body = block_of(statement);
  }
  return true;
}

plan::Operation& operation_in(plan::Plan& plan, const StatementPath& path) {
  return std::get<plan::Operation>(body_of(plan, path)[path.indices.back()].node);
}

plan::Statement when(const RankCondition& condition, plan::Comparator comparator,
                     const plan::Statement& statement) {
  return {plan::When{.condition = {{.left = condition.expression,
                                    .comparator = comparator,
                                    .right = condition.value}},
                     .body = {statement}}};
}

// As members of a batch: operands only.
Body members_of(const plan::Operation& operation) {
  if (const auto* batch = std::get_if<plan::Batch>(&operation.action)) return batch->body;
  return {{plan::Operation{
      .stream = plan::StreamId(), .origin = operation.origin, .action = operation.action}}};
}

bool can_be_in_batch(const plan::Operation& operation) {
  const plan::Action& action = operation.action;
  return !operation.async && operation.label.empty() && !operation.work &&
         (plan::communicates(action) || std::holds_alternative<plan::Batch>(action));
}

void rename(Body& body, const plan::Reference& from, const std::string& to) {
  for_each_operation(body, [&](plan::Operation& operation) {
    for (plan::Reference& reference : operation.after) {
      if (reference.name == from.name) reference.name = to;
    }
  });
}

std::string free_name(plan::Program& program) {
  std::set<std::string> names;
  for_each_operation(program.body,
                     [&](const plan::Operation& operation) { names.insert(operation.name.name); });
  std::string name = "sent";
  for (int k = 2; names.contains(name); ++k) name = "sent" + std::to_string(k);
  return name;
}

}  // namespace

StatementPath find_statement(const plan::Plan& plan, const plan::Operation& operation) {
  StatementPath path;
  for (; path.program < plan.programs.size(); ++path.program) {
    if (search(plan.programs[path.program].body, operation, path.indices)) return path;
  }
  throw InternalError("the operation is one of the plan's");
}

const plan::Operation& operation_at(const plan::Plan& plan, const StatementPath& path) {
  return std::get<plan::Operation>(body_of(plan, path)[path.indices.back()].node);
}

bool is_in_loop(const plan::Plan& plan, const StatementPath& path) {
  const Body* body = &plan.programs[path.program].body;
  for (std::size_t k = 0; k + 1 < path.indices.size(); ++k) {
    const plan::Statement& statement = (*body)[path.indices[k]];
    if (std::holds_alternative<plan::Repeat>(statement.node)) return true;
    body = block_of(statement);
  }
  return false;
}

bool are_adjacent(const OperationPair& pair) {
  return same_block(pair.first, pair.second) &&
         pair.first.indices.back() + 1 == pair.second.indices.back();
}

std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const OperationPair& pair) {
  if (!can_move(plan, pair)) return std::nullopt;
  plan::Plan result = plan;
  const auto body = body_of(result, pair.first).begin();
  const auto first = body + static_cast<std::ptrdiff_t>(pair.first.indices.back());
  const auto second = body + static_cast<std::ptrdiff_t>(pair.second.indices.back());
  std::rotate(first, second, second + 1);
  return result;
}

std::optional<plan::Plan> first_after_second(const plan::Plan& plan, const OperationPair& pair) {
  if (!can_move(plan, pair)) return std::nullopt;
  plan::Plan result = plan;
  const auto body = body_of(result, pair.first).begin();
  const auto first = body + static_cast<std::ptrdiff_t>(pair.first.indices.back());
  const auto second = body + static_cast<std::ptrdiff_t>(pair.second.indices.back());
  std::rotate(first, first + 1, second + 1);
  return result;
}

std::optional<plan::Plan> swapped(const plan::Plan& plan, const OperationPair& pair) {
  const bool simple = pair.first.program == pair.second.program && pair.first != pair.second &&
                      pair.first.indices.size() == pair.second.indices.size() &&
                      in_plain_blocks(plan, pair.first) && in_plain_blocks(plan, pair.second);
  if (!can_move(plan, pair) && !simple) return std::nullopt;
  plan::Plan result = plan;
  std::swap(operation_in(result, pair.first), operation_in(result, pair.second));
  return result;
}

std::optional<plan::Plan> batched(const plan::Plan& plan, const OperationPair& pair) {
  if (!can_move(plan, pair)) return std::nullopt;
  const plan::Operation& first = operation_at(plan, pair.first);
  const plan::Operation& second = operation_at(plan, pair.second);
  const bool fit =
      can_be_in_batch(first) && can_be_in_batch(second) && first.stream == second.stream;
  if (!fit) return std::nullopt;
  plan::Operation batch{.name = first.name.name.empty() ? second.name : first.name,
                        .stream = first.stream,
                        .origin = first.origin,
                        .after = first.after};
  Body members = members_of(first);
  std::ranges::copy(members_of(second), std::back_inserter(members));
  batch.action = plan::Batch{std::move(members)};
  for (const plan::Reference& reference : second.after) {
    const bool known = reference.name == first.name.name ||
                       std::ranges::find(batch.after, reference) != batch.after.end();
    if (!known) batch.after.push_back(reference);
  }
  const plan::Reference gone = second.name;
  plan::Plan result = plan;
  Body& body = body_of(result, pair.first);
  const std::string name = batch.name.name;
  body[pair.first.indices.back()].node = std::move(batch);
  body.erase(body.begin() + static_cast<std::ptrdiff_t>(pair.second.indices.back()));
  if (!gone.name.empty()) rename(result.programs[pair.first.program].body, gone, name);
  return result;
}

std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const OperationPair& pair,
                                              const RankCondition& condition) {
  if (!can_move(plan, pair)) return std::nullopt;
  plan::Plan result = plan;
  Body& body = body_of(result, pair.first);
  const plan::Statement second = body[pair.second.indices.back()];
  body[pair.second.indices.back()] = when(condition, plan::Comparator::not_equal, second);
  body.insert(body.begin() + static_cast<std::ptrdiff_t>(pair.first.indices.back()),
              when(condition, plan::Comparator::equal, second));
  return result;
}

std::optional<plan::Plan> swapped(const plan::Plan& plan, const OperationPair& pair,
                                  const RankCondition& condition) {
  if (are_adjacent(pair)) return second_before_first(plan, pair, condition);
  if (!can_move(plan, pair)) return std::nullopt;
  plan::Plan result = plan;
  Body& body = body_of(result, pair.first);
  const plan::Statement first = body[pair.first.indices.back()];
  const plan::Statement second = body[pair.second.indices.back()];
  const auto replace = [&](const StatementPath& path, const plan::Statement& here,
                           const plan::Statement& there) {
    body[path.indices.back()] = when(condition, plan::Comparator::equal, there);
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(path.indices.back()),
                when(condition, plan::Comparator::not_equal, here));
  };
  replace(pair.second, second, first);
  replace(pair.first, first, second);
  return result;
}

plan::Plan with_async(const plan::Plan& plan, const StatementPath& send,
                      const std::vector<StatementPath>& then) {
  plan::Plan result = plan;
  plan::Operation& operation = operation_in(result, send);
  operation.async = true;
  if (then.empty()) return result;
  if (operation.name.name.empty()) operation.name.name = free_name(result.programs[send.program]);
  for (const StatementPath& path : then) operation_in(result, path).after.push_back(operation.name);
  return result;
}

}  // namespace shiplap::check
