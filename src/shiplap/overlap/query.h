// A question about an overlapped product, in the words in which the command line and Python ask it.
//
//   Study study = begin_study({.op = "ag", .rows = 1024, .columns = 4096, .depth = 2048,
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

// What is not given is as the help of `shiplap overlap` says.
struct Query {
  std::optional<std::string> op;      // "ag", "rs", "ar", "none"
  std::optional<std::string> method;  // as name(), or "auto"
  std::optional<std::int64_t> rows;
  std::optional<std::int64_t> columns;
  std::optional<std::int64_t> depth;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> chunks;
  std::optional<std::string> type;
  std::optional<std::string> scaling;
  std::optional<std::string> fp8;
  std::optional<std::int64_t> groups;
  std::optional<std::string> hardware;     // to predict for
  std::optional<std::string> calibration;  // a file, whose content is
  std::optional<Calibration> calibrated;   // this
  std::optional<std::int64_t> rounds;
  bool atomic = false;
  bool tapered = false;
  bool plain_sums = false;
  bool polled = false;
  bool run = false;     // to measure it
  bool traces = false;  // to trace what is measured, or to predict one method and not to compare

  // Whether the method is to be chosen.
  [[nodiscard]] bool chooses() const { return method == "auto"; }
  // Whether it is to be said how long it takes, and not only what is done.
  [[nodiscard]] bool wants_times() const { return hardware.has_value() || run; }
  // Whether it is to be said how long all methods take.
  [[nodiscard]] bool compares() const;
};

// Throws InputError D003 if parts make no sense together.
void check_query(const Query& query);

// Throw InputError D003, the second if sizes are missing.
[[nodiscard]] Choice choice_of(const Query& query);
[[nodiscard]] Problem problem_of(const Query& query);
// The number of a flag, or else the usual one.
[[nodiscard]] int small_number(const char* flag, std::optional<std::int64_t> given, int usual);

// What is to be studied: chosen if that is asked for, and checked. A comparison is complete.
// Throws InputError D003, D601, D602, D632, D8xx.
[[nodiscard]] Study begin_study(const Query& query);
// Predicts it, for the hardware and from what was measured.
void finish_study(Study& study, const Query& query);
// What is chosen looks after its messages itself; collectives beside a product need a thread.
[[nodiscard]] bool is_polled(const Study& study, const Query& query);

}  // namespace shiplap::overlap
