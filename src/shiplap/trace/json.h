// A trace as JSON, for scripts: one array per event, in the order of "columns".
#pragma once

#include <string>

#include "shiplap/trace/trace.h"

namespace shiplap::trace {

// Compact, schema "shiplap.trace/1"; docs/trace.md describes it. Doubles have the fewest digits
// that read back to the same value.
// REQUIRES: the trace is not folded.
[[nodiscard]] std::string to_json(const Trace& trace);

}  // namespace shiplap::trace
