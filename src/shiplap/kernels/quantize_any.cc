// The loops for processors of which we know nothing more.
#include "shiplap/kernels/quantize_loops_internal.h"

namespace shiplap::kernels {
namespace {

const QuantizeLoops kLoops[] = {{largest_absolute_here, round_to_codes_here, round_to_blocks_here,
                                 widen_to_floats_here, widen_to_bf16_here, add_codes_here}};

}  // namespace

std::span<const QuantizeLoops> quantize_loops() { return kLoops; }

}  // namespace shiplap::kernels
