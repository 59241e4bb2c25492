// Calls, messages and exchange tables that do not match.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/check/job_internal.h"

namespace shiplap::check {

struct Mismatches {
  std::vector<std::int32_t> groups;   // with members that make different calls
  std::vector<std::int32_t> keys;     // with sends and receives that mismatch
  std::vector<Violation> violations;  // in tables of exchanges
  [[nodiscard]] bool none() const { return groups.empty() && keys.empty() && violations.empty(); }
};

[[nodiscard]] Mismatches find_mismatches(const Job& job);

}  // namespace shiplap::check
