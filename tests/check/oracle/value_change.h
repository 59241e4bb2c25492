// One random change of a small plan about values: of a statement, or of an operation.
#pragma once

#include "shiplap/base/random.h"
#include "value_plan.h"

namespace shiplap::oracle {

// It may leave a plan without meaning, or change nothing.
void change_value(ValuePlan& plan, Random& random);

}  // namespace shiplap::oracle
