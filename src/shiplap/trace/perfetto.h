// A trace as a file for Perfetto (https://ui.perfetto.dev): a process per rank, a thread per
// stream, a slice per event, flows from send to recv, and a counter of memory per rank.
//
// The format is Perfetto's protocol buffer of TrackEvent packets. Names are interned: written once
// and then referred to by number. The output is deterministic.
#pragma once

#include <string>

#include "shiplap/trace/trace.h"

namespace shiplap::trace {

struct PerfettoOptions {
  std::string title;  // of a slice above all others; none if empty
};

// Times are rounded to nanoseconds. If the first event begins before 0, all are shifted so that it
// begins at 0. Events that overlap on a stream, such as messages in flight, get further threads of
// that stream: "main (2)".
// REQUIRES: the trace is not folded.
[[nodiscard]] std::string to_perfetto(const Trace& trace, const PerfettoOptions& options = {});

}  // namespace shiplap::trace
