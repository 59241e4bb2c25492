// The loops for the widest vectors of this x86 processor.
#include "shiplap/kernels/elementwise.h"
#include "shiplap/kernels/epilogue_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {

void apply_epilogue(const EpilogueStep& step) {
  MultiTarget<apply_epilogue_inline>::kAll[best_target()](step);
}
void convert_to_f32(const ConvertStep& step) {
  MultiTarget<convert_to_f32_inline>::kAll[best_target()](step);
}
void apply_tanh(std::span<const float> x, std::span<float> result) {
  MultiTarget<apply_tanh_inline>::kAll[best_target()](x, result);
}

}  // namespace shiplap::kernels
