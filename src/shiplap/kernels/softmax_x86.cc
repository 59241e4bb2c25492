// The loops for the widest vectors of this x86 processor.
#include "shiplap/kernels/softmax_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {

void softmax_step(const SoftmaxStep<float>& step) {
  MultiTarget<softmax_step_inline<float>>::kAll[best_target()](step);
}
void softmax_step(const SoftmaxStep<Bf16>& step) {
  MultiTarget<softmax_step_inline<Bf16>>::kAll[best_target()](step);
}
void gradient_step(const GradientStep<float>& step) {
  MultiTarget<gradient_step_inline<float>>::kAll[best_target()](step);
}
void gradient_step(const GradientStep<Bf16>& step) {
  MultiTarget<gradient_step_inline<Bf16>>::kAll[best_target()](step);
}

}  // namespace shiplap::kernels
