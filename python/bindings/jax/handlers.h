// GemmHandler and GroupedGemmHandler on the foreign function interface (FFI) of XLA. Handlers
// decode arrays and attributes, and turn an exception into an error of XLA with the diagnostic as
// its text.
#pragma once

namespace shiplap::python::jax {

// Addresses of the handlers, for jax.ffi.register_ffi_target().
[[nodiscard]] void* gemm_handler();
[[nodiscard]] void* grouped_gemm_handler();

}  // namespace shiplap::python::jax
