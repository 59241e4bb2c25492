// What the events of a trace say beside their times: kind, layer, samples, bytes, memory, and which
// receive belongs to which send. All of it follows from the plan, before anything runs.
#pragma once

#include <vector>

#include "shiplap/plan/expand.h"
#include "shiplap/trace/trace.h"

namespace shiplap::run {

struct RankLabels {
  std::vector<trace::Event> events;  // by operation; without times
  std::vector<bool> is_event;        // allocate, free and batch are none
};

// Of all ranks: what a rank receives is known only where it was sent. Takes time in proportion to
// the operations of all ranks.
[[nodiscard]] std::vector<RankLabels> label(const plan::Plan& plan);

}  // namespace shiplap::run
