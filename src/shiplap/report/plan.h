// The output of `shiplap show`: the summary of a plan or the operations of one rank, as text and as
// JSON that contains every number.
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
  std::string title;                  // the name of the plan
  std::string detail;                 // of which model or layers, in one line; may be empty
  std::optional<std::int64_t> limit;  // lines per list; 0: all; nullopt: a screenful
};

[[nodiscard]] std::string show_plan(const plan::Plan& plan, const plan::Summary& summary,
                                    const ShowOptions& options, const TextStyle& style);
[[nodiscard]] std::string show_rank(const plan::RankProgram& rank, const ShowOptions& options,
                                    const TextStyle& style);

// Schema "shiplap.show/1".
[[nodiscard]] Json plan_to_json(const plan::Plan& plan, const plan::Summary& summary,
                                const std::string& file);
// Schema "shiplap.show_rank/1".
[[nodiscard]] Json rank_to_json(const plan::RankProgram& rank, const std::string& file);

}  // namespace shiplap::report
