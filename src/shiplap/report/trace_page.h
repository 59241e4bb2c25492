// The report of a trace: what every rank does when, how long it takes, how much memory it needs,
// and how much time is lost to bubbles and to communication that nothing hides.
#pragma once

#include <string>
#include <vector>

#include "shiplap/report/page.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

struct TraceReportText {
  std::string name;                  // of what ran: "1F1B"
  std::vector<std::string> assumed;  // whole sentences
  std::string command;               // that made it
};

[[nodiscard]] Page trace_page(const trace::Trace& trace, const TraceReportText& text);

// Ranks that do the same at the same times (to 1e-9 of the whole, whatever their samples).
struct AlikeRanks {
  std::vector<int> ranks;  // in order; the first stands for all
};
// In the order of the first of each.
[[nodiscard]] std::vector<AlikeRanks> alike(const trace::Trace& trace);

}  // namespace shiplap::report
