// The loops for any processor.
#include "shiplap/kernels/elementwise.h"
#include "shiplap/kernels/epilogue_loops_internal.h"

namespace shiplap::kernels {

void apply_epilogue(const EpilogueStep& step) { apply_epilogue_inline(step); }
void convert_to_f32(const ConvertStep& step) { convert_to_f32_inline(step); }
void apply_tanh(std::span<const float> x, std::span<float> result) { apply_tanh_inline(x, result); }

}  // namespace shiplap::kernels
