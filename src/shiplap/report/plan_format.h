// Formats parts of a plan in the syntax of its text format, with plain numbers for an expanded
// rank.
#pragma once

#include <string>

#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"

namespace shiplap::report {

[[nodiscard]] std::string format_selector(const plan::Selector& selector, const plan::Mesh& mesh);
// "sample 8 sum key 8 mask key<=tok".
[[nodiscard]] std::string format_dimensions(const plan::Tensor& tensor, const plan::Plan& plan);
[[nodiscard]] std::string format_mask(const plan::Tensor& tensor, const plan::Plan& plan);

// "x", "x[0 +2]", "x[rows 3, 1, ..]".
[[nodiscard]] std::string format_region(const plan::flat::Region& region,
                                        const plan::RankProgram& rank);
// "new G[0] shard 1 +1 sum sample 2 +2 scale 1/8".
[[nodiscard]] std::string format_value(const plan::flat::Value& value,
                                       const plan::RankProgram& rank);
// "b[1,0]", or "" if it has no name.
[[nodiscard]] std::string format_name(const plan::flat::Operation& op,
                                      const plan::RankProgram& rank);
// "over dp", "over ranks 0, 3 /side".
[[nodiscard]] std::string format_group(const plan::flat::Operation& op,
                                       const plan::RankProgram& rank);

}  // namespace shiplap::report
