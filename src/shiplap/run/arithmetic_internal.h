// Arithmetic on memory whose element type is known only at run time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shiplap/comm/type.h"
#include "shiplap/plan/operation.h"
#include "shiplap/plan/value.h"

namespace shiplap::run {

// Whether add() and, for sums over ranks, the communicator can do it: f64, f32, bf16, i64, i32.
[[nodiscard]] bool can_add(plan::ElementType type);
[[nodiscard]] bool is_floating(plan::ElementType type);

// into[i] += from[i]. bf16 is added as float and rounded. Promises can_add and equal sizes.
void add(plan::ElementType type, std::span<std::byte> into, std::span<const std::byte> from);

// Multiplies by a fraction. Promises is_floating and can_add.
void scale(plan::ElementType type, std::span<std::byte> numbers, plan::Ratio factor);

// The type in which ranks combine numbers: bf16 travels as float, so that it is rounded once.
[[nodiscard]] comm::Type combined_as(plan::ElementType type);

// bf16 to float and back.
[[nodiscard]] std::vector<float> widen(std::span<const std::byte> bf16);
void narrow(std::span<const float> numbers, std::span<std::byte> bf16);

// Whether the communicator has such an operator, and which it is.
[[nodiscard]] bool can_combine(plan::Operator op);
[[nodiscard]] comm::Reduction reduction_of(plan::Operator op);

}  // namespace shiplap::run
