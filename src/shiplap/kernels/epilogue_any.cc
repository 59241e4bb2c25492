// The loops for processors of which we know nothing more.
#include "shiplap/kernels/epilogue_loops_internal.h"

namespace shiplap::kernels {

void apply_epilogue(const EpilogueStep& step) { apply_epilogue_here(step); }
void widen(const WidenStep& step) { widen_here(step); }

}  // namespace shiplap::kernels
