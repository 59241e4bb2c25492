// Random legal layouts of small models, and single changes of their plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/layout/layout.h"
#include "shiplap/plan/plan.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {

// Known models with few layers, of every kind that they have: dense, grouped queries, norms of
// heads, experts, MLA, windows, tied embeddings, modules for further tokens.
[[nodiscard]] std::vector<workload::Model> small_models();

// Legal for the model, and with a mesh (not D645).
[[nodiscard]] layout::Layout random_layout(const workload::Model& model, Random& random,
                                           std::int64_t max_ranks = 512);

// A single change of a plan that makes its gradients wrong.
struct StepMutation {
  std::string name;
  // The changed text; empty if the plan has no place for it.
  std::string (*change)(const std::string& text, Random& random);
  std::vector<std::string_view> codes;  // one of which `check` should report first
};
[[nodiscard]] const std::vector<StepMutation>& step_mutations();

// The plan of a changed text; none if another operation names one that is gone.
[[nodiscard]] std::optional<plan::Plan> changed_plan(const std::string& text);

}  // namespace shiplap::step
