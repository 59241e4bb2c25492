// What a command may know of the outside world: where it reads and writes, and who is looking.
// `main` builds one for the process, tests build one from strings.
#pragma once

#include <algorithm>
#include <iosfwd>
#include <string>
#include <string_view>

#include "shiplap/base/diagnostic.h"

namespace shiplap::cli {

// What the process tells its caller.
enum class ExitCode {
  yes = 0,
  no = 1,            // the answer is "no"
  wrong_input = 2,   // a file, a flag or an argument
  missing_part = 3,  // an MPI, a library
  bug = 64,          // ours
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

  // How wide a table may be.
  [[nodiscard]] int width() const { return std::clamp(columns, 40, 100); }
};

inline constexpr std::string_view kBold = "\033[1m";
inline constexpr std::string_view kDim = "\033[2m";
inline constexpr std::string_view kCyan = "\033[36m";

// `text` in a style, if there is colour.
[[nodiscard]] inline std::string painted(std::string_view text, std::string_view style,
                                         Colour colour) {
  if (colour == Colour::off || text.empty()) return std::string(text);
  return std::string(style).append(text).append("\033[0m");
}

}  // namespace shiplap::cli
