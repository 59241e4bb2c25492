// AVX-512 versions. REQUIRES: the processor has AVX-512.
#pragma once

#include "shiplap/kernels/quantize_internal.h"

namespace shiplap::kernels {

// For bf16 input.
[[nodiscard]] float compute_amax_avx512(const AmaxStep& step);
void quantize_avx512(const QuantizeStep& step);
void quantize_blocks_avx512(const QuantizeBlocksStep& step);

void dequantize_to_f32_avx512(const DequantizeStep& step, float* to);
void dequantize_to_bf16_avx512(const DequantizeStep& step, Bf16* to);
void dequantize_add_avx512(const DequantizeStep& step, float* to);

}  // namespace shiplap::kernels
