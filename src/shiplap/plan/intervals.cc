#include <algorithm>
#include <utility>

#include "shiplap/plan/intervals_internal.h"

namespace shiplap::plan {

std::map<BufferId, std::int64_t> rows_covered(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, [](const Interval& i) { return std::pair(i.buffer, i.begin); });
  std::map<BufferId, std::int64_t> rows;
  BufferId buffer;
  std::int64_t reached = 0;
  for (const Interval& interval : intervals) {
    if (interval.buffer != buffer) reached = 0;
    buffer = interval.buffer;
    const std::int64_t begin = std::max(interval.begin, reached);
    if (interval.end > begin) rows[buffer] += interval.end - begin;
    reached = std::max(reached, interval.end);
  }
  return rows;
}

}  // namespace shiplap::plan
