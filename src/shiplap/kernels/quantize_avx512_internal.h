// What quantize_avx512.cc does, on processors that have it.
#pragma once

#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {

// Of bf16.
[[nodiscard]] float largest_absolute_by_avx512(const AmaxStep& step);
void round_to_codes_by_avx512(const RoundStep& step);
void round_to_blocks_by_avx512(const RoundBlocksStep& step);

void widen_to_floats_by_avx512(const WidenCodesStep& step, float* to);
void widen_to_bf16_by_avx512(const WidenCodesStep& step, Bf16* to);
void add_codes_by_avx512(const WidenCodesStep& step, float* to);

}  // namespace shiplap::kernels
