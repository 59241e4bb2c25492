// Progress of long work on the terminal, and Ctrl-C while it goes on.
#pragma once

#include <exception>
#include <string>

#include "shiplap/base/progress.h"

namespace shiplap::cli {

// Thrown out of work during which Ctrl-C was pressed.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(const ProgressPoint& point);
  // "interrupted while expanding ranks, 41 % done"
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  // What was being done, as ProgressPoint has it.
  [[nodiscard]] const std::string& work() const { return work_; }

 private:
  std::string work_;
  std::string text_;
};

// For the process: draws on stderr if that is a terminal, and throws Interrupted after SIGINT.
// Where nothing has called it for half a second, SIGINT ends the process as it always does.
[[nodiscard]] ProgressCallback process_progress();

}  // namespace shiplap::cli
