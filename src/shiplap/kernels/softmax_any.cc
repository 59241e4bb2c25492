// The loops for processors of which we know nothing more.
#include "shiplap/kernels/softmax_loops_internal.h"

namespace shiplap::kernels {

void softmax_step(const SoftmaxStep<float>& step) { softmax_step_here(step); }
void softmax_step(const SoftmaxStep<Bf16>& step) { softmax_step_here(step); }
void gradient_step(const GradientStep<float>& step) { gradient_step_here(step); }
void gradient_step(const GradientStep<Bf16>& step) { gradient_step_here(step); }

}  // namespace shiplap::kernels
