// The errors of a pipeline schedule, each with the cell that causes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy::torch_schedule {

struct ScheduleError {
  std::string_view code = "D626";
  std::string what;
  std::string why;
  std::string help;
};

// Collects diagnostics, up to a limit.
class ScheduleErrors {
 public:
  explicit ScheduleErrors(std::string_view file) : file_(file) {}

  void add(const Row& row, const Cell& cell, ScheduleError error) {
    if (diagnostics_.size() == kMaxErrors) return;
    diagnostics_.push_back(
        {.code = std::string(error.code),
         .where = {.file = std::string(file_),
                   .line = row.line,
                   .column = row.line > 0 ? static_cast<int>(cell.column) + 1 : 0,
                   .length = std::max(static_cast<int>(cell.text.size()), 1),
                   .excerpt = std::string(row.text)},
         .what = std::move(error.what),
         .why = std::move(error.why),
         .help = std::move(error.help)});
  }
  void add(ScheduleError error) { add(Row{.line = 0}, {}, std::move(error)); }

  void throw_if_any() const {
    if (!diagnostics_.empty()) throw InputError(diagnostics_);
  }

 private:
  static constexpr std::size_t kMaxErrors = 20;

  std::string_view file_;
  std::vector<Diagnostic> diagnostics_;
};

// Checks that every stage computes every microbatch once, the forward before the backward, and that
// a file with messages has all of them (D628, D629). REQUIRES: every stage is on one rank.
void check_actions(const Pipeline& pipeline, ScheduleErrors& errors);

}  // namespace shiplap::strategy::torch_schedule
