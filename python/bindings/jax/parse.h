// Parses the string attributes of a call. Each function throws InputError D817 if the word is
// unknown.
#pragma once

#include <string_view>

#include "shiplap/kernels/linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/operation.h"

namespace shiplap::python::jax {

[[nodiscard]] overlap::Type parse_comm_type(std::string_view word);  // "all_gather"
[[nodiscard]] overlap::Method parse_method(std::string_view word);   // "ring_exchange"
[[nodiscard]] kernels::Activation parse_activation(std::string_view word);
[[nodiscard]] DType parse_dtype(std::string_view word);  // "bf16"

}  // namespace shiplap::python::jax
