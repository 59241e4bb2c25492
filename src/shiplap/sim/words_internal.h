// Operations and groups in words, for problems.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Expands a rank again to name its operations: problems are few, and a linked keeps no names.
class Words {
 public:
  explicit Words(const LinkedProgram& linked) : linked_(linked) {}
  [[nodiscard]] std::string operation(Place place);  // "b[1]: all_reduce"
  [[nodiscard]] Where where(Place place);
  // "dp", "(dp, tp)/net", "ranks 0, 5 and 2 more".
  [[nodiscard]] std::string group(Place place) const;

 private:
  const LinkedProgram& linked_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

}  // namespace shiplap::sim
