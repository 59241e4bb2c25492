// Small rewrites of a plan: two operations of a program in another order, or in one batch. check()
// decides whether the result is sound.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::check {

// The position of a statement: its index in the body of its program, then in that of the block, ..
struct StatementPath {
  std::size_t program = 0;
  std::vector<std::size_t> indices;
  friend bool operator==(const StatementPath&, const StatementPath&) = default;
};

// REQUIRES: the operation is one of this plan's.
[[nodiscard]] StatementPath find_statement(const plan::Plan& plan,
                                           const plan::Operation& operation);
[[nodiscard]] const plan::Operation& operation_at(const plan::Plan& plan,
                                                  const StatementPath& path);
[[nodiscard]] bool is_in_loop(const plan::Plan& plan, const StatementPath& path);

// Two operations of one program, in program order.
struct OperationPair {
  StatementPath first;
  StatementPath second;
};
// Whether the second directly follows the first.
[[nodiscard]] bool are_adjacent(const OperationPair& pair);

// These return none if the two are in different blocks, or a `let` is between them.
[[nodiscard]] std::optional<plan::Plan> second_before_first(const plan::Plan& plan,
                                                            const OperationPair& pair);
[[nodiscard]] std::optional<plan::Plan> first_after_second(const plan::Plan& plan,
                                                           const OperationPair& pair);
[[nodiscard]] std::optional<plan::Plan> swapped(const plan::Plan& plan, const OperationPair& pair);
[[nodiscard]] std::optional<plan::Plan> batched(const plan::Plan& plan, const OperationPair& pair);

// The same, but only on ranks where `expression` equals `value`.
struct RankCondition {
  plan::Expr expression;
  std::int64_t value = 0;
};
[[nodiscard]] std::optional<plan::Plan> second_before_first(const plan::Plan& plan,
                                                            const OperationPair& pair,
                                                            const RankCondition& condition);
[[nodiscard]] std::optional<plan::Plan> swapped(const plan::Plan& plan, const OperationPair& pair,
                                                const RankCondition& condition);

// Makes the send async; only `then` wait for it. It gets a name if it has none. REQUIRES: the send
// is not in a loop, or `then` is empty.
[[nodiscard]] plan::Plan with_async(const plan::Plan& plan, const StatementPath& send,
                                    const std::vector<StatementPath>& then);

}  // namespace shiplap::check
