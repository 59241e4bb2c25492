// Rewrites that change nothing about a plan's soundness: `check` must stay silent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

struct Rewrite {
  std::string name;
  // Of an unrolled plan. None: there is nothing to rewrite in it.
  std::optional<plan::Plan> (*apply)(const plan::Plan& unrolled, std::uint64_t seed) = nullptr;
};
[[nodiscard]] const std::vector<Rewrite>& all_rewrites();

}  // namespace shiplap::mutations
