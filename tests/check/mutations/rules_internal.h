// What the mutations of rules share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rules.h"

namespace shiplap::mutations {

using Edits = std::vector<Edit>;
using Rules = std::vector<RuleMutation>;

// Null if it is none.
[[nodiscard]] const plan::Operation* operation_at(const Site& site);
[[nodiscard]] const plan::Compute* compute_at(const Site& site);
[[nodiscard]] const plan::Tensor& tensor_of(const Site& site, const plan::Value& value);
template <class Action>
[[nodiscard]] const Action* action_at(const Site& site) {
  const plan::Operation* operation = operation_at(site);
  return operation == nullptr ? nullptr : std::get_if<Action>(&operation->action);
}

// The operation with other actions, one after another, on its stream and in its place: the first
// waits for what it waited for, and who waits for it waits for the last.
[[nodiscard]] Statements instead_of(const plan::Operation& operation,
                                    const std::vector<plan::Action>& actions);
// `compute KERNEL`, reads region = from, writes region = to.
[[nodiscard]] plan::Compute convert(std::string kernel, const plan::Region& region,
                                    const plan::Value& from, const plan::Value& to);
[[nodiscard]] plan::Access reads(const plan::Region& region, const plan::Value& value);
[[nodiscard]] plan::Access writes(const plan::Region& region, const plan::Value& value);

// A buffer for a second copy of what a region holds: the last one of the program.
struct Scratch {
  plan::Buffer buffer;
  plan::Region region;
};
// None where the number of rows is an expression.
[[nodiscard]] std::optional<Scratch> scratch(const Site& site, const plan::Region& region);

// ---- other values, which fit into the same rows

using Change = std::vector<plan::Value>(const plan::Plan&, const plan::Value&);
// Of another instance; other coordinates of the part; fewer, more or other contributions; none;
// another scale; the other version.
Change with_other_instance, with_other_part, with_fewer_contributions, with_more_contributions,
    with_other_contributions, with_no_contributions, with_other_scale, with_other_version;

// Whether an access can be turned into another value around the computation: nothing else of it
// touches these rows.
[[nodiscard]] bool is_only_access(const plan::Compute& compute, std::size_t access);

// ---- the rules, by part

void add_statement_rules(Rules& rules);  // what is read must hold
void add_kernel_rules(Rules& rules);     // what a kernel states follows from what it reads
void add_linear_rules(Rules& rules);     // add, cast, scale, zero
void add_flow_rules(Rules& rules);       // contributions on their way
void add_memory_rules(Rules& rules);     // allocate, free
void add_order_rules(Rules& rules);      // races, order of what is counted together, deadlock
void add_matching_rules(Rules& rules);   // collectives, messages, exchanges
void add_declared_rules(Rules& rules);   // masks, scales, layers and sizes that tensors declare
void add_corner_rules(Rules& rules);     // an expression that differs at the last position

}  // namespace shiplap::mutations
