// The loops for the widest vectors of this x86 processor.
#include "shiplap/kernels/quantize_avx512_internal.h"
#include "shiplap/kernels/quantize_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {
namespace {

// Whole functions, see targets_internal.h.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] float compute_amax_512(
    const AmaxStep& step) {
  if (step.type == DType::bf16) return compute_amax_avx512(step);
  return compute_amax_inline(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void quantize_512(
    const QuantizeStep& step) {
  if (step.type == DType::bf16) return quantize_avx512(step);
  quantize_inline(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void quantize_blocks_512(
    const QuantizeBlocksStep& step) {
  if (step.type == DType::bf16) return quantize_blocks_avx512(step);
  quantize_blocks_inline(step);
}

const QuantizeLoops kLoops[] = {
    {compute_amax_512, quantize_512, quantize_blocks_512, dequantize_to_f32_avx512,
     dequantize_to_bf16_avx512, dequantize_add_avx512},
    {MultiTarget<compute_amax_inline>::for_256, MultiTarget<quantize_inline>::for_256,
     MultiTarget<quantize_blocks_inline>::for_256, MultiTarget<dequantize_to_f32_inline>::for_256,
     MultiTarget<dequantize_to_bf16_inline>::for_256, MultiTarget<dequantize_add_inline>::for_256},
    {MultiTarget<compute_amax_inline>::for_128, MultiTarget<quantize_inline>::for_128,
     MultiTarget<quantize_blocks_inline>::for_128, MultiTarget<dequantize_to_f32_inline>::for_128,
     MultiTarget<dequantize_to_bf16_inline>::for_128, MultiTarget<dequantize_add_inline>::for_128}};

}  // namespace

std::span<const QuantizeLoops> quantize_loops() { return std::span(kLoops).subspan(best_target()); }

}  // namespace shiplap::kernels
