// The extension module of the Python package.
#include "bind.h"

NB_MODULE(_shiplap, m) {
  using namespace shiplap::python;  // NOLINT(google-build-using-namespace)
  // Tensors that share memory with our objects may outlive the interpreter and are then never
  // freed. That is not a leak; the tests look for real ones.
  nb::set_leak_warnings(false);
  m.doc() = "The C++ side of shiplap. Use the package around it.";
  bind_errors(m);
  bind_plan(m);
  bind_trace(m);
  bind_check(m);
  bind_postmortem(m);
  bind_simulate(m);
  bind_strategy(m);
  bind_dispatch(m);
  bind_jax(m);
  bind_overlap(m);
}
