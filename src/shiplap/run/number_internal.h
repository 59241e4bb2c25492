// Which numbers the kernels know.
#pragma once

#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/number.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/operation.h"

namespace shiplap::run {

// Throws InputError D802 if no kernel multiplies such numbers.
[[nodiscard]] kernels::Number number_of(plan::ElementType type);

[[nodiscard]] inline bool is_fp8(plan::ElementType type) {
  return type == plan::ElementType::fp8_e4m3 || type == plan::ElementType::fp8_e5m2;
}
// Promises that it is FP8.
[[nodiscard]] inline kernels::Fp8 format_of(plan::ElementType type) {
  return type == plan::ElementType::fp8_e5m2 ? kernels::Fp8::e5m2 : kernels::Fp8::e4m3;
}

// Throws InputError D802 if no kernel makes the product.
void demand_kernels(const overlap::Problem& problem);

}  // namespace shiplap::run
