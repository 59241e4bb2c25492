// Element types that the GEMM kernels support.
#pragma once

#include "shiplap/base/dtype.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::run {

// Returns `type`. Throws InputError D802 if no kernel multiplies such numbers.
[[nodiscard]] DType gemm_dtype(DType type);

// Throws InputError D802 if no kernel makes the product.
void demand_kernels(const overlap::Problem& problem);

}  // namespace shiplap::run
