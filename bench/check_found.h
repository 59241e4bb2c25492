// The detection rate and the false positive rate of check.
#pragma once

#include <cstdint>
#include <string>

#include "shiplap/base/json.h"

namespace shiplap {

struct FoundSizes {
  std::int64_t mutation_plans = 40;     // for each kind of bug
  std::int64_t oracle_plans = 100'000;  // random ones
  std::uint64_t oracle_seed = 1;        // the first
};

// `museum`: the folder with museum.json.
void measure_findings(Json& json, const FoundSizes& sizes, const std::string& museum);

}  // namespace shiplap
