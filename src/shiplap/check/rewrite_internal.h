// Small changes of a plan as it is written: two operations of a program in another order, or at
// once. Whether the result makes sense is for check() to say.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::check {

// Where a statement stands: its index in the body of its program, then in that of the block, ..
struct Spot {
  std::size_t program = 0;
  std::vector<std::size_t> path;
  friend bool operator==(const Spot&, const Spot&) = default;
};

// Promises that the operation is one of this plan's.
[[nodiscard]] Spot spot_of(const plan::Plan& plan, const plan::Operation& operation);
[[nodiscard]] const plan::Operation& operation_at(const plan::Plan& plan, const Spot& spot);
[[nodiscard]] bool is_in_loop(const plan::Plan& plan, const Spot& spot);

// Two operations of one program, in the order in which they stand.
struct Two {
  Spot first;
  Spot second;
};
// One right behind the other.
[[nodiscard]] bool are_neighbours(const Two& two);

// All of these give nothing where the two do not stand in one block, or a `let` is between them.
[[nodiscard]] std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const Two& two);
[[nodiscard]] std::optional<plan::Plan> first_after_second(const plan::Plan& plan, const Two& two);
[[nodiscard]] std::optional<plan::Plan> exchanged(const plan::Plan& plan, const Two& two);
[[nodiscard]] std::optional<plan::Plan> in_one_batch(const plan::Plan& plan, const Two& two);

// The same, only on ranks where an expression has a value.
struct Only {
  plan::Expr where;
  std::int64_t is = 0;
};
[[nodiscard]] std::optional<plan::Plan> second_before_first(const plan::Plan& plan, const Two& two,
                                                            const Only& only);
[[nodiscard]] std::optional<plan::Plan> exchanged(const plan::Plan& plan, const Two& two,
                                                  const Only& only);

// Nobody waits for the send but `then`. It gets a name if it has none. Promises that the send is
// not in a loop.
[[nodiscard]] plan::Plan with_async(const plan::Plan& plan, const Spot& send,
                                    const std::vector<Spot>& then);

}  // namespace shiplap::check
