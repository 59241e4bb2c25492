// The loops for any processor.
#include "shiplap/kernels/softmax_loops_internal.h"

namespace shiplap::kernels {

void softmax_step(const SoftmaxStep<float>& step) { softmax_step_inline(step); }
void softmax_step(const SoftmaxStep<Bf16>& step) { softmax_step_inline(step); }
void gradient_step(const GradientStep<float>& step) { gradient_step_inline(step); }
void gradient_step(const GradientStep<Bf16>& step) { gradient_step_inline(step); }

}  // namespace shiplap::kernels
