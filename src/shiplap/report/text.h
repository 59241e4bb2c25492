// Text output for terminals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/units.h"

namespace shiplap::report {

// The properties of the terminal.
struct TextStyle {
  Colour colour = Colour::off;
  int width = 100;  // columns
};

inline constexpr std::string_view kBold = "\033[1m";
inline constexpr std::string_view kDim = "\033[2m";
inline constexpr std::string_view kCyan = "\033[36m";

// `text` in an ANSI style, if colour is on.
[[nodiscard]] inline std::string styled(std::string_view text, std::string_view style,
                                        Colour colour) {
  if (colour == Colour::off || text.empty()) return std::string(text);
  return std::string(style).append(text).append("\033[0m");
}

// The text of a table cell. Implicit constructors, so that a row is a list of values.
struct Cell {
  std::string text;
  Cell() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Cell(std::string value) : text(std::move(value)) {}
  Cell(std::string_view value) : text(value) {}
  Cell(const char* value) : text(value) {}
  Cell(Seconds time) : text(to_string(time)) {}
  Cell(Bytes bytes) : text(to_string(bytes)) {}
  Cell(Bandwidth bandwidth) : text(to_string(bandwidth)) {}
  // NOLINTEND(google-explicit-constructor)
};

// Formats byte counts in a common unit that suits all values.
class ByteColumn {
 public:
  explicit ByteColumn(std::vector<std::int64_t> values);
  [[nodiscard]] std::string_view unit() const;  // "MiB"
  [[nodiscard]] std::string cell(std::int64_t bytes) const;

 private:
  std::size_t unit_ = 0;
  int decimals_ = 0;
};

// Formats times in a common unit.
class TimeColumn {
 public:
  explicit TimeColumn(Seconds longest) : is_short_(longest < Seconds{2e-3}) {}
  [[nodiscard]] std::string title(std::string_view what) const;  // "start, us"
  [[nodiscard]] std::string cell(Seconds time) const;

 private:
  bool is_short_;
};

// Replaces the control characters that a terminal would interpret.
[[nodiscard]] std::string printable(std::string_view text);

// The width in terminal columns.
[[nodiscard]] std::size_t display_width(std::string_view text);

// Truncates to `width` columns, ending with "…".
[[nodiscard]] std::string truncated(std::string_view text, std::size_t width);

// Wraps at blanks; lines after the first are indented.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

// "1 program", "2 programs".
[[nodiscard]] std::string counted(std::int64_t number, std::string_view thing);

}  // namespace shiplap::report
