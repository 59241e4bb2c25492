// One random change of a small plan, of the kind that people make by mistake.
#pragma once

#include "shiplap/base/random.h"
#include "small_text.h"

namespace shiplap::oracle {

// It may leave a plan without meaning, or change nothing.
void change_something(SmallPlan& plan, Random& random);

}  // namespace shiplap::oracle
