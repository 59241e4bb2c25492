// The loops for processors of which we know nothing more.
#include "shiplap/kernels/quantize_loops_internal.h"

namespace shiplap::kernels {
namespace {

float largest_absolute_anywhere(const AmaxStep& step) { return largest_absolute_here(step); }

void round_to_codes_anywhere(const RoundStep& step) { round_to_codes_here(step); }

void round_to_blocks_anywhere(const RoundBlocksStep& step) { round_to_blocks_here(step); }

void widen_to_floats_anywhere(const WidenCodesStep& step, float* to) {
  widen_to_floats_here(step, to);
}

void widen_to_bf16_anywhere(const WidenCodesStep& step, Bf16* to) { widen_to_bf16_here(step, to); }

void add_codes_anywhere(const WidenCodesStep& step, float* to) { add_codes_here(step, to); }

const QuantizeLoops kLoops[] = {{largest_absolute_anywhere, round_to_codes_anywhere,
                                 round_to_blocks_anywhere, widen_to_floats_anywhere,
                                 widen_to_bf16_anywhere, add_codes_anywhere}};

}  // namespace

std::span<const QuantizeLoops> quantize_loops() { return kLoops; }

}  // namespace shiplap::kernels
