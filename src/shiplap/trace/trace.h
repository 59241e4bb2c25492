// The events of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
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
  // Of a real run on several clocks, which were aligned: the times of a rank may be off by so much
  // against those of rank 0. 0: one clock.
  Seconds clock_uncertainty;
  // Of a folded trace, by rank: the rank, not after it, that has its events and its memory; peers,
  // matches and samples are those of that rank. Empty: every rank has its own.
  std::vector<std::int32_t> representatives;

  [[nodiscard]] std::size_t representative(std::size_t rank) const {
    return representatives.empty() ? rank : static_cast<std::size_t>(representatives[rank]);
  }
  [[nodiscard]] bool is_representative(std::size_t rank) const {
    return representative(rank) == rank;
  }
  [[nodiscard]] const RankTrace& of(std::size_t rank) const { return ranks[representative(rank)]; }
  friend bool operator==(const Trace&, const Trace&) = default;
};

}  // namespace shiplap::trace
