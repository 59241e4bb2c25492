// The report page of a trace: timeline, step time, peak memory, bubbles and exposed communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/plan/mesh.h"
#include "shiplap/report/page.h"
#include "shiplap/report/trace.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// A page of more ranks draws identical ones as one row.
inline constexpr std::int64_t kMaxUnfoldedRanks = 8;

// How much a page draws. Above a limit, rows are sampled and narrow boxes merged, and it says so.
struct TracePageLimits {
  std::size_t rows = 64;
  std::int64_t boxes = 20'000;  // of each of the two strips
  std::size_t memory_points = 2000;
  double min_gap = 0;  // pixels
};
// A notebook is saved with its pictures: each has less than 1 MB.
inline constexpr TracePageLimits kNotebookLimits{
    .rows = 16, .boxes = 1000, .memory_points = 400, .min_gap = 1};

struct TraceReportText {
  std::string name;                  // of the strategy or plan: "1F1B"
  std::vector<std::string> assumed;  // whole sentences
  std::string command;               // that created it
  plan::Mesh mesh;                   // names classes of ranks; no axes: not known
  TraceScale scale;
  TracePageLimits limits;
};

[[nodiscard]] Page trace_page(const trace::Trace& trace, const TraceReportText& text);

// The rank without what ends before `begin`. Events that run then are cut: a rank that loads more
// weights than others still loads when the step begins.
[[nodiscard]] trace::RankTrace cut_before(trace::RankTrace rank, Seconds begin);

// "at the start of the step", "3.28 s into the step", "while loading the weights".
[[nodiscard]] std::string format_peak_time(const trace::Summary& summary);

// Ranks with the same events at the same times (to 1e-9 of the trace), whatever their samples.
struct IdenticalRanks {
  std::vector<int> ranks;  // in order; the first represents all
};
// "pp=0" or "pp=1-6 tp=0" if the ranks are all ranks with these mesh coordinates; "" if they are
// not, or if rank numbers are as short: one rank, all ranks, a mesh of one axis.
[[nodiscard]] std::string name_by_mesh(const std::vector<int>& ranks, const plan::Mesh& mesh);
// Sorted by the first rank of each group.
[[nodiscard]] std::vector<IdenticalRanks> group_identical_ranks(const trace::Trace& trace);

}  // namespace shiplap::report
