// Sets of rows of buffers, as intervals that may overlap.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "shiplap/plan/operation.h"

namespace shiplap::plan {

// Rows begin .. end-1 of one buffer.
struct Interval {
  BufferId buffer;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Returns the number of rows in the union of the intervals, by buffer.
[[nodiscard]] std::map<BufferId, std::int64_t> rows_covered(std::vector<Interval> intervals);

}  // namespace shiplap::plan
