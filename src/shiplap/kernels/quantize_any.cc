// The loops for any processor.
#include "shiplap/kernels/quantize_loops_internal.h"

namespace shiplap::kernels {
namespace {

const QuantizeLoops kLoops[] = {{compute_amax_inline, quantize_inline, quantize_blocks_inline,
                                 dequantize_to_f32_inline, dequantize_to_bf16_inline,
                                 dequantize_add_inline}};

}  // namespace

std::span<const QuantizeLoops> quantize_loops() { return kLoops; }

}  // namespace shiplap::kernels
