// What `shiplap show` prints: a plan at a glance, or what one of its ranks does; for people, and as
// JSON from which another program can rebuild every number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/base/json.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"
#include "shiplap/plan/summary.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct ShowOptions {
  std::string title;                  // what to call the plan
  std::optional<std::int64_t> limit;  // lines per list; 0: all; none: what fits a screen
};

[[nodiscard]] std::string show_plan(const plan::Plan& plan, const plan::Summary& summary,
                                    const ShowOptions& options, const TextLook& look);
[[nodiscard]] std::string show_rank(const plan::RankProgram& rank, const ShowOptions& options,
                                    const TextLook& look);

// Schema "shiplap.show/1".
[[nodiscard]] Json plan_to_json(const plan::Plan& plan, const plan::Summary& summary,
                                const std::string& file);
// Schema "shiplap.show_rank/1".
[[nodiscard]] Json rank_to_json(const plan::RankProgram& rank, const std::string& file);

}  // namespace shiplap::report
