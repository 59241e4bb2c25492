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

// The block in which a statement stands.
template <class P>
auto& body_of(P& plan, const Spot& spot) {
  auto* body = &plan.programs[spot.program].body;
  for (std::size_t k = 0; k + 1 < spot.path.size(); ++k) body = block_of((*body)[spot.path[k]]);
  return *body;
}

bool search(const Body& body, const plan::Operation& operation, std::vector<std::size_t>& path) {
  for (std::size_t k = 0; k < body.size(); ++k) {
    path.push_back(k);
    if (std::get_if<plan::Operation>(&body[k].node) == &operation) return true;
    const Body* block = block_of(body[k]);
    if (block != nullptr && search(*block, operation, path)) return true;
    path.pop_back();
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

bool same_block(const Spot& a, const Spot& b) {
  return a.program == b.program && a.path.size() == b.path.size() &&
         std::equal(a.path.begin(), a.path.end() - 1, b.path.begin());
}

// What stands behind a `let` sees one name more than what stands before it.
bool can_move(const plan::Plan& plan, const Two& two) {
  if (!same_block(two.first, two.second) || two.first.path >= two.second.path) return false;
  const Body& body = body_of(plan, two.first);
  const auto begin = body.begin() + static_cast<std::ptrdiff_t>(two.first.path.back());
  const auto end = body.begin() + static_cast<std::ptrdiff_t>(two.second.path.back());
  return std::none_of(begin, end, [](const plan::Statement& statement) {
    return std::holds_alternative<plan::Let>(statement.node);
  });
}

// Without repeat, when, let around them, nothing but the batches that they are in.
bool in_plain_blocks(const plan::Plan& plan, const Spot& spot) {
  const Body* body = &plan.programs[spot.program].body;
  for (std::size_t k = 0; k + 1 < spot.path.size(); ++k) {
    const plan::Statement& statement = (*body)[spot.path[k]];
    if (!std::holds_alternative<plan::Operation>(statement.node)) return false;
    body = block_of(statement);
  }
  return true;
}

plan::Operation& operation_in(plan::Plan& plan, const Spot& spot) {
  return std::get<plan::Operation>(body_of(plan, spot)[spot.path.back()].node);
}

plan::Statement when(const Only& only, plan::Comparator comparator,
                     const plan::Statement& statement) {
  return {
      plan::When{.condition = {{.left = only.where, .comparator = comparator, .right = only.is}},
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

Spot spot_of(const plan::Plan& plan, const plan::Operation& operation) {
  Spot spot;
  for (; spot.program < plan.programs.size(); ++spot.program) {
    if (search(plan.programs[spot.program].body, operation, spot.path)) return spot;
  }
  throw InternalError("the operation is one of the plan's");
}

const plan::Operation& operation_at(const plan::Plan& plan, const Spot& spot) {
  return std::get<plan::Operation>(body_of(plan, spot)[spot.path.back()].node);
}

bool is_in_loop(const plan::Plan& plan, const Spot& spot) {
  const Body* body = &plan.programs[spot.program].body;
  for (std::size_t k = 0; k + 1 < spot.path.size(); ++k) {
    const plan::Statement& statement = (*body)[spot.path[k]];
    if (std::holds_alternative<plan::Repeat>(statement.node)) return true;
    body = block_of(statement);
  }
  return false;
}

bool are_neighbours(const Two& two) {
  return same_block(two.first, two.second) && two.first.path.back() + 1 == two.second.path.back();
}

std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const Two& two) {
  if (!can_move(plan, two)) return std::nullopt;
  plan::Plan result = plan;
  const auto body = body_of(result, two.first).begin();
  const auto first = body + static_cast<std::ptrdiff_t>(two.first.path.back());
  const auto second = body + static_cast<std::ptrdiff_t>(two.second.path.back());
  std::rotate(first, second, second + 1);
  return result;
}

std::optional<plan::Plan> first_after_second(const plan::Plan& plan, const Two& two) {
  if (!can_move(plan, two)) return std::nullopt;
  plan::Plan result = plan;
  const auto body = body_of(result, two.first).begin();
  const auto first = body + static_cast<std::ptrdiff_t>(two.first.path.back());
  const auto second = body + static_cast<std::ptrdiff_t>(two.second.path.back());
  std::rotate(first, first + 1, second + 1);
  return result;
}

std::optional<plan::Plan> exchanged(const plan::Plan& plan, const Two& two) {
  const bool plain = two.first.program == two.second.program && two.first != two.second &&
                     two.first.path.size() == two.second.path.size() &&
                     in_plain_blocks(plan, two.first) && in_plain_blocks(plan, two.second);
  if (!can_move(plan, two) && !plain) return std::nullopt;
  plan::Plan result = plan;
  std::swap(operation_in(result, two.first), operation_in(result, two.second));
  return result;
}

std::optional<plan::Plan> in_one_batch(const plan::Plan& plan, const Two& two) {
  if (!can_move(plan, two)) return std::nullopt;
  const plan::Operation& first = operation_at(plan, two.first);
  const plan::Operation& second = operation_at(plan, two.second);
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
  Body& body = body_of(result, two.first);
  const std::string name = batch.name.name;
  body[two.first.path.back()].node = std::move(batch);
  body.erase(body.begin() + static_cast<std::ptrdiff_t>(two.second.path.back()));
  if (!gone.name.empty()) rename(result.programs[two.first.program].body, gone, name);
  return result;
}

std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const Two& two,
                                              const Only& only) {
  if (!can_move(plan, two)) return std::nullopt;
  plan::Plan result = plan;
  Body& body = body_of(result, two.first);
  const plan::Statement second = body[two.second.path.back()];
  body[two.second.path.back()] = when(only, plan::Comparator::not_equal, second);
  body.insert(body.begin() + static_cast<std::ptrdiff_t>(two.first.path.back()),
              when(only, plan::Comparator::equal, second));
  return result;
}

std::optional<plan::Plan> exchanged(const plan::Plan& plan, const Two& two, const Only& only) {
  if (are_neighbours(two)) return second_before_first(plan, two, only);
  if (!can_move(plan, two)) return std::nullopt;
  plan::Plan result = plan;
  Body& body = body_of(result, two.first);
  const plan::Statement first = body[two.first.path.back()];
  const plan::Statement second = body[two.second.path.back()];
  const auto replace = [&](const Spot& spot, const plan::Statement& here,
                           const plan::Statement& there) {
    body[spot.path.back()] = when(only, plan::Comparator::equal, there);
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(spot.path.back()),
                when(only, plan::Comparator::not_equal, here));
  };
  replace(two.second, second, first);
  replace(two.first, first, second);
  return result;
}

plan::Plan with_async(const plan::Plan& plan, const Spot& send, const std::vector<Spot>& then) {
  plan::Plan result = plan;
  plan::Operation& operation = operation_in(result, send);
  operation.async = true;
  if (then.empty()) return result;
  if (operation.name.name.empty()) operation.name.name = free_name(result.programs[send.program]);
  for (const Spot& spot : then) operation_in(result, spot).after.push_back(operation.name);
  return result;
}

}  // namespace shiplap::check
