// Which numbers the kernels know.
#pragma once

#include "shiplap/kernels/number.h"
#include "shiplap/plan/operation.h"

namespace shiplap::run {

// Throws InputError D802 if no kernel multiplies such numbers.
[[nodiscard]] kernels::Number number_of(plan::ElementType type);

}  // namespace shiplap::run
