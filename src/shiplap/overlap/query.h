// A query about an overlapped GEMM, as the command line and Python state it.
//
//   Study study = begin_study({.op = "ag", .m = 1024, .n = 4096, .k = 2048,
//                              .hardware = "h100_80g_nvl8"});
//   finish_study(study, query);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/overlap/calibration.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/overlap/study.h"

namespace shiplap::overlap {

// Defaults are those in the help of `shiplap overlap`.
struct Query {
  std::optional<std::string> op;      // "ag", "rs", "ar", "none"
  std::optional<std::string> method;  // as name(), or "auto"
  std::optional<std::int64_t> m;
  std::optional<std::int64_t> n;
  std::optional<std::int64_t> k;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> chunks;
  std::optional<std::string> type;
  std::optional<std::string> scaling;
  std::optional<std::string> fp8;
  std::optional<std::int64_t> groups;
  std::optional<std::string> hardware;     // to predict for
  std::optional<std::string> calibration;  // a file,
  std::optional<Calibration> calibrated;   // and its contents
  std::optional<std::int64_t> rounds;
  bool atomic = false;
  bool tapered = false;
  bool high_precision_sums = false;
  bool polled = false;
  bool run = false;     // measure
  bool traces = false;  // trace the measurement, or predict one method instead of comparing

  // Whether to choose the method.
  [[nodiscard]] bool chooses() const { return method == "auto"; }
  // Whether to report times, not only the plan.
  [[nodiscard]] bool wants_times() const { return hardware.has_value() || run; }
  // Whether to compare all methods.
  [[nodiscard]] bool compares() const;
};

// Throws InputError D003 if flags contradict each other.
void check_query(const Query& query);

// Throw InputError D003 if --op or sizes are missing.
[[nodiscard]] Choice choice_of(const Query& query);
[[nodiscard]] Problem problem_of(const Query& query);
// Returns the value of a flag, or the default. Throws InputError D003 if it is 0 or too large.
[[nodiscard]] int int_flag(const char* flag, std::optional<std::int64_t> given, int default_value);

// Starts a study: chooses if the query asks for it, and validates. A comparison is complete.
// Throws InputError D003, D601, D602, D632, D8xx.
[[nodiscard]] Study begin_study(const Query& query);
// Adds predictions, for the hardware and from the measurement.
void finish_study(Study& study, const Query& query);
// Returns whether to poll for progress. A chosen method polls, unless it overlaps collectives,
// which need a progress thread.
[[nodiscard]] bool is_polled(const Study& study, const Query& query);

}  // namespace shiplap::overlap
