// The environment of a command: its streams and the terminal. `main` builds one for the process,
// tests build one from strings.
#pragma once

#include <algorithm>
#include <iosfwd>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/progress.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {

// The exit code of the process.
enum class ExitCode {
  yes = 0,
  no = 1,                  // the answer is "no"
  wrong_input = 2,         // an invalid file, flag or argument
  missing_dependency = 3,  // an MPI, a library
  bug = 64,                // ours
  interrupted = 130,
};

// Standard output or standard error.
struct OutputStream {
  std::ostream& stream;
  bool is_terminal = false;
  Colour colour = Colour::off;
};

struct Context {
  std::istream& in;
  OutputStream out;  // data
  OutputStream err;  // warnings, progress, the suggested next command
  int columns = 100;
  ProgressCallback progress;  // for long tasks

  // The maximum width of a table.
  [[nodiscard]] int width() const { return std::clamp(columns, 40, 100); }
  // The style of `out`.
  [[nodiscard]] report::TextStyle text_style() const {
    return {.colour = out.colour, .width = width()};
  }
};

}  // namespace shiplap::cli
