// A plan as Python holds it: with its name, and the text that it was read from, if it was.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shiplap/base/files.h"
#include "shiplap/plan/plan.h"

namespace shiplap::python {

struct NamedPlan {
  plan::Plan plan;
  std::string name;  // for titles: "1f1b on 8 ranks", "step.plan"
  std::optional<SourceText> source;
};

// Plans do not change, so they are shared.
using SharedPlan = std::shared_ptr<const NamedPlan>;

// Does something with a plan, and says where in its text a problem lies.
template <class Do>
auto placing_errors(const NamedPlan& plan, const Do& act) {
  if (plan.source) return shiplap::placing_errors(*plan.source, act);
  return act();
}

}  // namespace shiplap::python
