// The loops for any processor.
#include "shiplap/kernels/epilogue_loops_internal.h"

namespace shiplap::kernels {

void apply_epilogue(const EpilogueStep& step) { apply_epilogue_inline(step); }
void convert_to_f32(const ConvertStep& step) { convert_to_f32_inline(step); }

}  // namespace shiplap::kernels
