// The events of all ranks.
#pragma once

#include <string>
#include <vector>

#include "shiplap/trace/event.h"

namespace shiplap::trace {

// From `time` on, `bytes` are alive.
struct MemoryPoint {
  Seconds time;
  Bytes bytes;
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};

struct RankTrace {
  std::vector<Event> events;        // in program order
  std::vector<MemoryPoint> memory;  // by time
  friend bool operator==(const RankTrace&, const RankTrace&) = default;
};

struct Trace {
  std::vector<std::string> streams{"main"};  // Event::stream is an index
  std::vector<std::string> axes;             // along which ranks communicate: "tp", "dp cp"
  std::vector<RankTrace> ranks;
  friend bool operator==(const Trace&, const Trace&) = default;
};

}  // namespace shiplap::trace
