// What a command may know of the outside world: where it reads and writes, and who is looking.
// `main` builds one for the process, tests build one from strings.
#pragma once

#include <algorithm>
#include <iosfwd>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/progress.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {

// What the process tells its caller.
enum class ExitCode {
  yes = 0,
  no = 1,            // the answer is "no"
  wrong_input = 2,   // a file, a flag or an argument
  missing_part = 3,  // an MPI, a library
  bug = 64,          // ours
  interrupted = 130,
};

// One of the two streams that people or programs read.
struct Sink {
  std::ostream& stream;
  bool is_terminal = false;
  Colour colour = Colour::off;
};

struct Context {
  std::istream& in;
  Sink out;  // data
  Sink err;  // warnings, progress, the suggested next command
  int columns = 100;
  ProgressCallback progress;  // for work that may take long

  // How wide a table may be.
  [[nodiscard]] int width() const { return std::clamp(columns, 40, 100); }
  // What is written to `out` looks so.
  [[nodiscard]] report::TextLook look() const { return {.colour = out.colour, .width = width()}; }
};

}  // namespace shiplap::cli
