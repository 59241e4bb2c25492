// The totals of a trace: duration, peak memory, and the time that ranks compute, communicate or are
// idle. docs/trace.md has the formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/trace/spans.h"
#include "shiplap/trace/trace.h"

namespace shiplap::trace {

// The times of one rank within the step. computation + exposed + idle is the step time.
struct RankSummary {
  Seconds computation;    // at least one computation runs
  Seconds communication;  // at least one communication runs
  Seconds exposed;        // communication that does not overlap computation
  Seconds idle;           // neither
  Seconds bubble;         // of it, between the first forward and the last backward of all ranks
  Bytes peak;
  Seconds peak_time;  // when the peak is first reached
  friend bool operator==(const RankSummary&, const RankSummary&) = default;
};

struct KindSummary {
  EventKind kind = EventKind::compute;
  std::int64_t events = 0;
  Seconds time;  // sum of the durations on all ranks
  Bytes bytes;   // sum on all ranks; a message counts at its send and at its recv
  friend bool operator==(const KindSummary&, const KindSummary&) = default;
};

// The communication along some axes of the mesh, summed over the ranks. Parts that run at the same
// time count for each of their axes.
struct AxisSummary {
  std::string axes;
  Seconds communication;
  Seconds exposed;
  friend bool operator==(const AxisSummary&, const AxisSummary&) = default;
};

struct Summary {
  Span whole;   // from the start of the first event to the end of the last
  Span step;    // from the start of the first event that is not load_weights
  Span passes;  // from the start of the first forward to the end of the last backward
  // The fraction of the ranks' time in `passes` in which they neither compute nor communicate. Only
  // of a pipeline: a trace whose ranks run forwards of different layers, and backwards.
  std::optional<double> bubble;
  std::vector<RankSummary> ranks;
  RankSummary all;       // sums over the ranks; its peak is the highest
  int peak_rank = 0;     // the first rank with the highest peak
  int exposed_rank = 0;  // with the most exposed communication
  int idle_rank = 0;     // with the most idle time
  std::int64_t events = 0;
  std::vector<KindSummary> kinds;  // those that occur, in the order of EventKind
  std::vector<AxisSummary> axes;   // as Trace::axes

  [[nodiscard]] Seconds total() const { return whole.length(); }
  [[nodiscard]] Seconds step_time() const { return step.length(); }
  // A time summed over all ranks as a fraction of ranks * step time.
  [[nodiscard]] double fraction_of_step(Seconds of_all_ranks) const;
};
[[nodiscard]] Summary summarize(const Trace& trace);

// The times at which one rank computes, and at which it communicates.
struct Activity {
  Spans computation;
  Spans communication;
};
[[nodiscard]] Activity activity(const RankTrace& rank);

[[nodiscard]] bool is_forward(EventKind kind);
[[nodiscard]] bool is_backward(EventKind kind);  // of input, weight, or both

}  // namespace shiplap::trace
