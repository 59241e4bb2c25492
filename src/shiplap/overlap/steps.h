// Maps each operation of an overlapped GEMM to its chunk of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/plan/plan.h"
#include "shiplap/trace/trace.h"

namespace shiplap::overlap {

struct Step {
  enum class Kind { gemm, sum, send, receive, collective };
  Kind kind = Kind::gemm;
  int owner = -1;              // the rank that owns the rows; -1: several ranks
  std::int64_t chunk = -1;     // global index; -1: several chunks
  std::string name;            // "2.1": chunk 1 of rank 2; "2": all rows of rank 2; "": several
  std::int64_t first_row = 0;  // of X and Y
  std::int64_t rows = 0;
  std::string word;  // "multiply", "add", "send", "reduce_scatter"
};

// Returns the steps of `rank`, by operation in its expansion (trace::Event::operation). REQUIRES:
// `plan` is from make_plan().
[[nodiscard]] std::vector<Step> steps_of(const plan::Plan& plan, int rank);

struct TimedStep {
  Step step;
  Seconds start;
  Seconds end;
  int peer = -1;
  int operation = 0;
  Bytes bytes;
};
// Returns the steps of `rank`, sorted by start. Steps without duration are omitted.
[[nodiscard]] std::vector<TimedStep> timeline(const plan::Plan& plan, const trace::Trace& trace,
                                              int rank);
// Returns the rank that ends last; the lowest of several.
[[nodiscard]] int last_rank(const trace::Trace& trace);
[[nodiscard]] Seconds end_of(const trace::Trace& trace);

}  // namespace shiplap::overlap
