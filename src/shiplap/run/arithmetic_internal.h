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
[[nodiscard]] bool can_add(DType type);
[[nodiscard]] bool is_floating(DType type);
[[nodiscard]] bool is_narrow(DType type);  // bf16 or f16

// into[i] += from[i]. Narrow numbers are added as float and rounded. Promises can_add and equal
// sizes.
void add(DType type, std::span<std::byte> into, std::span<const std::byte> from);

// Multiplies by a fraction. Promises is_floating and can_add.
void scale(DType type, std::span<std::byte> numbers, plan::Ratio factor);

// The type in which ranks combine numbers: narrow ones as float, so that they are rounded once.
[[nodiscard]] DType combined_as(DType type);

// Narrow numbers to float and back.
[[nodiscard]] std::vector<float> widen(DType type, std::span<const std::byte> numbers);
void narrow(std::span<const float> numbers, DType type, std::span<std::byte> to);

// Whether the communicator has such an operator, and which it is.
[[nodiscard]] bool can_combine(ReduceOp op);

}  // namespace shiplap::run
