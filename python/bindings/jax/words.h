// What attributes say in words. Each throws InputError D817 for a word that there is not.
#pragma once

#include <string_view>

#include "shiplap/kernels/linear.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/operation.h"

namespace shiplap::python::jax {

[[nodiscard]] overlap::Type type_called(std::string_view word);      // "all_gather"
[[nodiscard]] overlap::Method method_called(std::string_view word);  // "ring_exchange"
[[nodiscard]] kernels::Activation activation_called(std::string_view word);
[[nodiscard]] DType element_type_called(std::string_view word);  // "bf16"

}  // namespace shiplap::python::jax
