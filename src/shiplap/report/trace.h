// Text and JSON of a trace: first the summary, then a line per rank.
#pragma once

#include <cstdint>
#include <string>

#include "shiplap/base/json.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/report/text.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// What the text adds if it is known, that is not 0.
struct TraceScale {
  Bytes capacity;           // the memory of a device
  FlopRate peak;            // the speed of a device
  std::int64_t tokens = 0;  // of a step, on all ranks
  double model_flop = 0;    // of its forward and backward passes, without recomputation
};

// Identical ranks share a line, which names their mesh coordinates, if the mesh is known.
[[nodiscard]] std::string show_trace(const trace::Trace& trace, const trace::Summary& summary,
                                     const TextStyle& style, const plan::Mesh& mesh = {},
                                     const TraceScale& scale = {});

// "487,018 tokens/s, MFU 43.2 %"; "" if the tokens are not known.
[[nodiscard]] std::string format_throughput(const trace::Summary& summary, const TraceScale& scale);
// "tp 29.2 %, dp 2.4 %" of the ranks' time; "" if there is one axis.
[[nodiscard]] std::string format_exposed_axes(const trace::Summary& summary);

// Times in seconds, memory in bytes.
[[nodiscard]] Json trace_to_json(const trace::Trace& trace, const trace::Summary& summary,
                                 const TraceScale& scale = {});

}  // namespace shiplap::report
