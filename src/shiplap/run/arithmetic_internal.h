// Arithmetic on memory whose element type is known only at run time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shiplap/comm/type.h"
#include "shiplap/plan/operation.h"
#include "shiplap/plan/value.h"

namespace shiplap::run {

// Whether add() and, for sums over ranks, the communicator can do it: floats of 16 bits or more,
// i64, i32.
[[nodiscard]] bool can_add(plan::ElementType type);
[[nodiscard]] bool is_floating(plan::ElementType type);
[[nodiscard]] bool is_narrow(plan::ElementType type);  // bf16 or f16

// into[i] += from[i]. Narrow numbers are added as float and rounded. Promises can_add and equal
// sizes.
void add(plan::ElementType type, std::span<std::byte> into, std::span<const std::byte> from);

// Multiplies by a fraction. Promises is_floating and can_add.
void scale(plan::ElementType type, std::span<std::byte> numbers, plan::Ratio factor);

// The type in which ranks combine numbers: narrow ones as float, so that they are rounded once.
[[nodiscard]] comm::Type combined_as(plan::ElementType type);

// Narrow numbers to float and back.
[[nodiscard]] std::vector<float> widen(plan::ElementType type, std::span<const std::byte> numbers);
void narrow(std::span<const float> numbers, plan::ElementType type, std::span<std::byte> to);

// Whether the communicator has such an operator, and which it is.
[[nodiscard]] bool can_combine(plan::Operator op);
[[nodiscard]] comm::Reduction reduction_of(plan::Operator op);

}  // namespace shiplap::run
