// Functions of single f32 numbers, vectorized for this processor.
#pragma once

#include <span>

namespace shiplap::kernels {

// result[i] = tanh(x[i]), with a relative error below 6e-7. A number gives the same bits at every
// position. REQUIRES: equal sizes; the two are the same memory or do not overlap.
void apply_tanh(std::span<const float> x, std::span<float> result);

}  // namespace shiplap::kernels
