// Element types that the GEMM kernels support.
#pragma once

#include "shiplap/base/dtype.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::run {

// Returns `type`. Throws InputError D802 if no kernel supports it.
[[nodiscard]] DType gemm_dtype(DType type);

// Throws InputError D802 if no kernel supports the dtypes of the GEMM.
void check_gemm_supported(const overlap::Problem& problem);

}  // namespace shiplap::run
