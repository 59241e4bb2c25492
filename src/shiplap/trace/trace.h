// What happened on all ranks.
#pragma once

#include <string>
#include <vector>

#include "shiplap/trace/event.h"

namespace shiplap::trace {

// From here on so many bytes are alive.
struct MemoryPoint {
  Seconds time;
  Bytes bytes;
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

struct RankTrace {
  std::vector<Event> events;        // as listed
  std::vector<MemoryPoint> memory;  // by time
  friend bool operator==(const RankTrace&, const RankTrace&) = default;
};

struct Trace {
  std::vector<std::string> streams{"main"};  // Event::stream counts these
  std::vector<RankTrace> ranks;
  friend bool operator==(const Trace&, const Trace&) = default;
};

}  // namespace shiplap::trace
