// Text and JSON of a trace: first the summary, then a line per rank.
#pragma once

#include <string>

#include "shiplap/base/json.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/report/text.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// Identical ranks share a line, which names their mesh coordinates, if the mesh is known.
[[nodiscard]] std::string show_trace(const trace::Trace& trace, const trace::Summary& summary,
                                     const TextStyle& style, const plan::Mesh& mesh = {});

// Times in seconds, memory in bytes.
[[nodiscard]] Json trace_to_json(const trace::Trace& trace, const trace::Summary& summary);

}  // namespace shiplap::report
