// The rank that others wait for most, in a job that moves.
#pragma once

#include <cstdint>
#include <optional>

#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

struct SlowRank {
  std::int32_t rank = -1;
  double others_wait = 0;  // of the time that others wait in calls: the median
  double waits = 0;        // the same of this rank
  std::int32_t unit = -1;  // of the rank: the call that another one waited in for longest
};

// None if nobody is slow, or if the dumps have no durations of calls.
[[nodiscard]] std::optional<SlowRank> find_slow_rank(const Progress& progress);

}  // namespace shiplap::postmortem
