// Which communication of different ranks belongs together: the ends of a message, the calls of a
// collective, the ranks of an exchange that send each other rows.
#pragma once

#include <functional>

#include "shiplap/plan/link.h"

namespace shiplap::run {

struct Partners {
  plan::OperationId own;
  plan::OperationId partner;
  // Whether `own` cannot complete before `partner` has started, because it needs its data: a
  // receive needs its send; all ranks of an all_reduce need each other; a broadcast needs its root.
  bool needs = false;
};

// Calls `visit` for every two operations that communicate with each other, both ways.
void for_each_partner(const plan::LinkedProgram& linked,
                      const std::function<void(const Partners&)>& visit);

}  // namespace shiplap::run
