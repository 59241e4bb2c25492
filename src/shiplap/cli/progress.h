// Progress of long tasks on the terminal, and Ctrl-C during them.
#pragma once

#include <exception>
#include <string>

#include "shiplap/base/progress.h"

namespace shiplap::cli {

// Thrown by the progress callback after Ctrl-C.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(const ProgressPoint& point);
  // "interrupted while expanding ranks, 41 % done"
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  // The interrupted task, as in ProgressPoint::what.
  [[nodiscard]] const std::string& work() const { return work_; }

 private:
  std::string work_;
  std::string text_;
};

// For the process: draws on stderr if it is a terminal, and throws Interrupted after SIGINT. If it
// has not been called for half a second, SIGINT terminates the process as by default.
[[nodiscard]] ProgressCallback process_progress();

}  // namespace shiplap::cli
