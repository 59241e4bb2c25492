// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/quantize_avx512_internal.h"
#include "shiplap/kernels/quantize_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {
namespace {

// Whole functions, see targets_internal.h.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]]
float largest_absolute_512(const AmaxStep& step) {
  if (step.type == DType::bf16) return largest_absolute_by_avx512(step);
  return largest_absolute_here(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]]
void round_to_codes_512(const RoundStep& step) {
  if (step.type == DType::bf16) return round_to_codes_by_avx512(step);
  round_to_codes_here(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]]
void round_to_blocks_512(const RoundBlocksStep& step) {
  if (step.type == DType::bf16) return round_to_blocks_by_avx512(step);
  round_to_blocks_here(step);
}

const QuantizeLoops kLoops[] = {
    {largest_absolute_512, round_to_codes_512, round_to_blocks_512, widen_to_floats_by_avx512,
     widen_to_bf16_by_avx512, add_codes_by_avx512},
    {Compiled<largest_absolute_here>::for_256, Compiled<round_to_codes_here>::for_256,
     Compiled<round_to_blocks_here>::for_256, Compiled<widen_to_floats_here>::for_256,
     Compiled<widen_to_bf16_here>::for_256, Compiled<add_codes_here>::for_256},
    {Compiled<largest_absolute_here>::for_128, Compiled<round_to_codes_here>::for_128,
     Compiled<round_to_blocks_here>::for_128, Compiled<widen_to_floats_here>::for_128,
     Compiled<widen_to_bf16_here>::for_128, Compiled<add_codes_here>::for_128}};

}  // namespace

std::span<const QuantizeLoops> quantize_loops() {
  return std::span(kLoops).subspan(first_that_runs());
}

}  // namespace shiplap::kernels
