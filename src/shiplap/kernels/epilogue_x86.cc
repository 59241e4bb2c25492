// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/epilogue_loops_internal.h"
#include "shiplap/kernels/targets_internal.h"

namespace shiplap::kernels {

void apply_epilogue(const EpilogueStep& step) {
  Compiled<apply_epilogue_here>::kAll[first_that_runs()](step);
}
void widen(const WidenStep& step) { Compiled<widen_here>::kAll[first_that_runs()](step); }

}  // namespace shiplap::kernels
