// The laws of kernels: may one that reads this write that?
#pragma once

#include "shiplap/plan/expand.h"

namespace shiplap::oracle {

[[nodiscard]] bool law_holds(const plan::RankProgram& program, const plan::flat::Operation& op);

}  // namespace shiplap::oracle
