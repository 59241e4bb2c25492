// Which chunk of rows does each operation of an overlapped product multiply, add up or move?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/plan.h"
#include "shiplap/trace/trace.h"

namespace shiplap::overlap {

struct Step {
  enum class Kind { product, sum, send, receive, collective };
  Kind kind = Kind::product;
  int owner = -1;              // the rank whose rows they are; -1: those of several
  std::int64_t chunk = -1;     // of all ranks, counted through; -1: rows of several
  std::string name;            // "2.1": chunk 1 of rank 2; "2": all rows of rank 2; "": of several
  std::int64_t first_row = 0;  // of X and Y
  std::int64_t rows = 0;
  std::string word;  // "multiply", "add", "send", "reduce_scatter"
};

// What rank `rank` does, by number of the operation in its expansion (trace::Event::operation).
// `plan` is one of make_plan().
[[nodiscard]] std::vector<Step> steps_of(const plan::Plan& plan, int rank);

struct TimedStep {
  Step step;
  Seconds start;
  Seconds end;
  int peer = -1;
  int operation = 0;
  Bytes bytes;
};
// In order of time. What takes no time is left out.
[[nodiscard]] std::vector<TimedStep> timeline(const plan::Plan& plan, const trace::Trace& trace,
                                              int rank);
// The first rank of those that end last.
[[nodiscard]] int last_rank(const trace::Trace& trace);
[[nodiscard]] Seconds end_of(const trace::Trace& trace);

// A measured receive begins when it is posted, which may be long before anything is sent. Here a
// message begins when both its ends have, as in a simulation.
[[nodiscard]] trace::Trace with_messages_begun(trace::Trace trace);

}  // namespace shiplap::overlap
