// A plan in Python: with its name, and the text that it was parsed from, if any.
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

// Plans are immutable, so they are shared.
using SharedPlan = std::shared_ptr<const NamedPlan>;

// Calls act; adds source locations to its errors if the plan has a source text.
template <class Do>
auto with_source_locations(const NamedPlan& plan, const Do& act) {
  if (plan.source) return shiplap::with_source_locations(*plan.source, act);
  return act();
}

}  // namespace shiplap::python
