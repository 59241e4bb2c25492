// The totals of a trace: how long it took, how much memory it needed and where, and how much time
// the ranks lost. docs/trace.md has the formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shiplap/trace/spans.h"
#include "shiplap/trace/trace.h"

namespace shiplap::trace {

// The times of one rank within the step: computation, exposed and idle add up to it.
struct RankSummary {
  Seconds computation;    // something is computed, however much at once
  Seconds communication;  // something is sent, received or reduced
  Seconds exposed;        // communication while nothing is computed
  Seconds idle;           // neither
  Seconds passes;         // a forward or a backward runs, or several at once
  Bytes peak;
  Seconds peak_time;  // when it is first reached
  friend bool operator==(const RankSummary&, const RankSummary&) = default;
};

struct KindSummary {
  Kind kind = Kind::compute;
  std::int64_t events = 0;
  Seconds time;  // durations added up, over all ranks
  Bytes bytes;   // likewise; a message counts for its send and again for its recv
  friend bool operator==(const KindSummary&, const KindSummary&) = default;
};

struct Summary {
  Span whole;   // from the start of the first event to the end of the last
  Span step;    // from the start of the first event that is not load_weights
  Span passes;  // from the start of the first forward to the end of the last backward
  // Part of the ranks' time in `passes` that is neither forward nor backward; none if there is
  // no forward or no backward.
  std::optional<double> bubble;
  std::vector<RankSummary> ranks;
  RankSummary all;       // sums over the ranks; its peak is the highest
  int peak_rank = 0;     // of the highest peak, the first one
  int exposed_rank = 0;  // with the most exposed communication
  int idle_rank = 0;     // with the most idle time
  std::int64_t events = 0;
  std::vector<KindSummary> kinds;  // that occur, in the order of Kind

  [[nodiscard]] Seconds total() const { return whole.length(); }
  [[nodiscard]] Seconds step_time() const { return step.length(); }
  // Of the ranks' time in the step.
  [[nodiscard]] double part_of_step(Seconds of_all_ranks) const;
};
[[nodiscard]] Summary summarize(const Trace& trace);

// When one rank computes, and when it communicates: what the totals are the lengths of.
struct Activity {
  Spans computation;
  Spans communication;
};
[[nodiscard]] Activity activity(const RankTrace& rank);

[[nodiscard]] bool is_forward(Kind kind);
[[nodiscard]] bool is_backward(Kind kind);  // both halves, or either

}  // namespace shiplap::trace
