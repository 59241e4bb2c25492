// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/softmax_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {

void softmax_step(const SoftmaxStep<float>& step) {
  Compiled<softmax_step_here<float>>::kAll[first_that_runs()](step);
}
void softmax_step(const SoftmaxStep<Bf16>& step) {
  Compiled<softmax_step_here<Bf16>>::kAll[first_that_runs()](step);
}
void gradient_step(const GradientStep<float>& step) {
  Compiled<gradient_step_here<float>>::kAll[first_that_runs()](step);
}
void gradient_step(const GradientStep<Bf16>& step) {
  Compiled<gradient_step_here<Bf16>>::kAll[first_that_runs()](step);
}

}  // namespace shiplap::kernels
