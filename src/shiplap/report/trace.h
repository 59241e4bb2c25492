// A trace in the terminal: the answer first, then a line per rank.
#pragma once

#include <string>

#include "shiplap/base/json.h"
#include "shiplap/report/text.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// Ranks that do the same share a line.
[[nodiscard]] std::string show_trace(const trace::Trace& trace, const trace::Summary& summary,
                                     const TextLook& look);

// Times in seconds, memory in bytes.
[[nodiscard]] Json trace_to_json(const trace::Trace& trace, const trace::Summary& summary);

}  // namespace shiplap::report
