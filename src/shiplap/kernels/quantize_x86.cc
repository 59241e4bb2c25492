// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/quantize_avx512_internal.h"
#include "shiplap/kernels/quantize_loops_internal.h"

namespace shiplap::kernels {
namespace {

// See epilogue_x86.cc.
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] float largest_absolute_512(
    const AmaxStep& step) {
  if (step.type == DType::bf16) return largest_absolute_by_avx512(step);
  return largest_absolute_here(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void round_to_codes_512(
    const RoundStep& step) {
  if (step.type == DType::bf16) return round_to_codes_by_avx512(step);
  round_to_codes_here(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void round_to_blocks_512(
    const RoundBlocksStep& step) {
  if (step.type == DType::bf16) return round_to_blocks_by_avx512(step);
  round_to_blocks_here(step);
}

[[gnu::target("avx2,fma")]] float largest_absolute_256(const AmaxStep& step) {
  return largest_absolute_here(step);
}

[[gnu::target("avx2,fma")]] void round_to_codes_256(const RoundStep& step) {
  round_to_codes_here(step);
}

[[gnu::target("avx2,fma")]] void round_to_blocks_256(const RoundBlocksStep& step) {
  round_to_blocks_here(step);
}

[[gnu::target("avx2,fma")]] void widen_to_floats_256(const WidenCodesStep& step, float* to) {
  widen_to_floats_here(step, to);
}

[[gnu::target("avx2,fma")]] void widen_to_bf16_256(const WidenCodesStep& step, Bf16* to) {
  widen_to_bf16_here(step, to);
}

[[gnu::target("avx2,fma")]] void add_codes_256(const WidenCodesStep& step, float* to) {
  add_codes_here(step, to);
}

float largest_absolute_128(const AmaxStep& step) { return largest_absolute_here(step); }

void round_to_codes_128(const RoundStep& step) { round_to_codes_here(step); }

void round_to_blocks_128(const RoundBlocksStep& step) { round_to_blocks_here(step); }

void widen_to_floats_128(const WidenCodesStep& step, float* to) { widen_to_floats_here(step, to); }

void widen_to_bf16_128(const WidenCodesStep& step, Bf16* to) { widen_to_bf16_here(step, to); }

void add_codes_128(const WidenCodesStep& step, float* to) { add_codes_here(step, to); }

const QuantizeLoops kLoops[] = {
    {largest_absolute_512, round_to_codes_512, round_to_blocks_512, widen_to_floats_by_avx512,
     widen_to_bf16_by_avx512, add_codes_by_avx512},
    {largest_absolute_256, round_to_codes_256, round_to_blocks_256, widen_to_floats_256,
     widen_to_bf16_256, add_codes_256},
    {largest_absolute_128, round_to_codes_128, round_to_blocks_128, widen_to_floats_128,
     widen_to_bf16_128, add_codes_128}};

std::size_t first_that_runs() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return 0;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 2;
}

}  // namespace

std::span<const QuantizeLoops> quantize_loops() {
  static const std::size_t first = first_that_runs();
  return std::span(kLoops).subspan(first);
}

}  // namespace shiplap::kernels
