// Operations and groups in words, for problems.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/job_internal.h"

namespace shiplap::sim {

// Expands a rank again to name its operations: problems are few, and a job keeps no names.
class Words {
 public:
  explicit Words(const Job& job) : job_(job) {}
  [[nodiscard]] std::string operation(Place place);  // "b[1]: all_reduce"
  [[nodiscard]] Where where(Place place);
  // "dp", "(dp, tp)/net", "ranks 0, 5 and 2 more".
  [[nodiscard]] std::string group(Place place) const;

 private:
  const Job& job_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

}  // namespace shiplap::sim
