// Formats operations and groups for diagnostics.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Expands a rank again to name its operations: a LinkedProgram keeps no names, and diagnostics are
// few.
class Formatter {
 public:
  explicit Formatter(const LinkedProgram& linked) : linked_(linked) {}
  [[nodiscard]] std::string operation(OperationId id);  // "b[1]: all_reduce"
  [[nodiscard]] Where where(OperationId id);
  // "dp", "(dp, tp)/net", "ranks 0, 5 and 2 more".
  [[nodiscard]] std::string group(OperationId id) const;

 private:
  const LinkedProgram& linked_;
  std::map<std::int32_t, plan::RankProgram> programs_;
};

}  // namespace shiplap::sim
