// Reports of `simulate` and `run`: text, JSON and page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/json.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/report/page.h"
#include "shiplap/report/text.h"
#include "shiplap/report/trace.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/trace.h"

namespace shiplap::report {

// A plan whose execution has times.
struct TimedPlan {
  std::string name;    // "1f1b", "step.plan"
  std::string title;   // "1f1b on 8 ranks (dp=2 pp=4)", "step.plan"
  std::string detail;  // its size or its costs; may be empty
  std::string where;   // the machine that it is predicted for, or the backend that runs it
  plan::Mesh mesh;
  trace::Trace trace;
};

// Whole sentences about a trace: predicted for a machine, or measured on a backend.
[[nodiscard]] std::string prediction_note(const std::string& machine,
                                          const std::vector<std::string>& conditions = {},
                                          bool shares_links = false);
[[nodiscard]] std::string measurement_note(const std::string& backend);

// The result of `simulate`.
struct SimulatedPlan {
  TimedPlan plan;
  TraceScale scale;
  trace::Summary summary;               // of the trace
  std::vector<Diagnostic> warnings;     // its placement is slow
  std::vector<Diagnostic> problems;     // it cannot be executed
  std::optional<Diagnostic> memory;     // it does not fit
  std::vector<std::string> conditions;  // that differ from the default: "one hardware queue"
  bool shares_links = false;            // one of them

  [[nodiscard]] bool good() const { return problems.empty() && !memory; }
};
[[nodiscard]] std::string simulation_text(const SimulatedPlan& found, const TextStyle& style);
// Schema "shiplap.simulate/1".
[[nodiscard]] Json simulation_json(const SimulatedPlan& found);
[[nodiscard]] Page simulation_page(const SimulatedPlan& found, const std::string& command);
// "simulated 4 of 64 ranks; the others are alike\n"; "" if each was simulated.
[[nodiscard]] std::string folding_text(const trace::Trace& trace);

// The result of `run`, which trains.
struct ExecutedPlan {
  TimedPlan plan;
  std::vector<double> losses;
  std::vector<Seconds> times;  // of each step, on the slowest rank
  std::int64_t unequal = 0;    // elements of weights that differ between ranks
};
// The text in parts, because steps are printed as they complete: what precedes the first step, a
// step, and what follows the last one.
[[nodiscard]] std::string execution_head(const TimedPlan& plan, const TextStyle& style);
[[nodiscard]] std::string execution_step(std::int64_t number, double loss, Seconds time);
[[nodiscard]] std::string execution_end(const ExecutedPlan& found);
// Schema "shiplap.run/1".
[[nodiscard]] Json execution_json(const ExecutedPlan& found);
[[nodiscard]] Page execution_page(const ExecutedPlan& found, const std::string& command);

}  // namespace shiplap::report
