// Parts of a plan in the words of its text form, with plain numbers where a rank is expanded.
#pragma once

#include <string>

#include "shiplap/plan/expand.h"
#include "shiplap/plan/plan.h"

namespace shiplap::report {

[[nodiscard]] std::string words(const plan::Selector& selector, const plan::Mesh& mesh);
[[nodiscard]] std::string words(const plan::Mesh& mesh);  // "pp=4 tp=2"
[[nodiscard]] std::string words(const plan::Ratio& ratio);
// "sample 8 sum key 8 mask key<=tok".
[[nodiscard]] std::string dimensions(const plan::Tensor& tensor, const plan::Plan& plan);
[[nodiscard]] std::string mask(const plan::Tensor& tensor, const plan::Plan& plan);

// "x", "x[0 +2]", "x[rows 3, 1, ..]".
[[nodiscard]] std::string words(const plan::flat::Region& region, const plan::RankProgram& rank);
// "new G[0] shard 1 +1 sum sample 2 +2 scale 1/8".
[[nodiscard]] std::string words(const plan::flat::Value& value, const plan::RankProgram& rank);
// "b[1,0]", or "" if it has no name.
[[nodiscard]] std::string name_of(const plan::flat::Operation& op, const plan::RankProgram& rank);
// "over dp", "over ranks 0, 3 /side".
[[nodiscard]] std::string over(const plan::flat::Operation& op, const plan::RankProgram& rank);

}  // namespace shiplap::report
