// A trace as a file for Perfetto (https://ui.perfetto.dev): a process per rank, a thread per
// stream, a slice per event, flows from send to recv, and a counter of memory per rank.
//
// The format is Perfetto's own, TrackEvent packets in a protocol buffer. Names are written once
// and then referred to by number. The same trace gives the same bytes.
#pragma once

#include <string>

#include "shiplap/trace/trace.h"

namespace shiplap::trace {

struct PerfettoOptions {
  std::string title;  // of a slice above everything; none if it is empty
};

// Times are rounded to nanoseconds; if the first event begins before 0, it is moved to 0 and all
// others with it. What overlaps on a stream, such as messages under way, goes to further threads of
// that stream: "main (2)".
[[nodiscard]] std::string to_perfetto(const Trace& trace, const PerfettoOptions& options = {});

}  // namespace shiplap::trace
