// Arithmetic on memory whose element type is known at run time.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shiplap/comm/type.h"
#include "shiplap/plan/operation.h"
#include "shiplap/plan/value.h"

namespace shiplap::run {

// Whether add() and reductions over ranks support the type: floats of 16 bits or more, i64, i32.
[[nodiscard]] bool can_add(DType type);
[[nodiscard]] bool is_floating(DType type);
[[nodiscard]] bool is_narrow(DType type);  // bf16 or f16

// into[i] += from[i]. bf16 and f16 are added in float and rounded. REQUIRES: can_add(type), equal
// sizes.
void add(DType type, std::span<std::byte> into, std::span<const std::byte> from);

// Multiplies by a fraction. REQUIRES: is_floating(type).
void scale(DType type, std::span<std::byte> numbers, plan::Ratio factor);

// The accumulation type of reductions over ranks: float for bf16 and f16, so they are rounded once.
[[nodiscard]] DType accumulate_dtype(DType type);

// Converts bf16 and f16 to float and back.
[[nodiscard]] std::vector<float> widen(DType type, std::span<const std::byte> numbers);
void narrow(std::span<const float> numbers, DType type, std::span<std::byte> to);

// Whether the communicator supports the reduction.
[[nodiscard]] bool can_combine(ReduceOp op);

}  // namespace shiplap::run
