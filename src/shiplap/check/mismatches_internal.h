// Where what should meet does not.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/check/job_internal.h"

namespace shiplap::check {

struct Mismatches {
  std::vector<std::int32_t> groups;  // whose members do not make the same calls
  std::vector<std::int32_t> keys;    // whose sends and receives do not fit
  std::vector<Trouble> troubles;     // in tables of exchanges
  [[nodiscard]] bool none() const { return groups.empty() && keys.empty() && troubles.empty(); }
};

[[nodiscard]] Mismatches find_mismatches(const Job& job);

}  // namespace shiplap::check
