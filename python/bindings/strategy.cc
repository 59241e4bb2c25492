// Strategies: what they are made of, and how they are run.
#include "bind.h"

namespace shiplap::python {

void bind_strategy(nb::module_& /*m*/) {}

}  // namespace shiplap::python
