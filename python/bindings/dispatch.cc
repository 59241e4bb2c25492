// The Q/KV dispatch: layouts, tables, proofs.
#include "bind.h"

namespace shiplap::python {

void bind_dispatch(nb::module_& /*m*/) {}

}  // namespace shiplap::python
