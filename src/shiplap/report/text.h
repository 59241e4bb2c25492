// Text for people who read it in a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/units.h"

namespace shiplap::report {

// Where it is read.
struct TextLook {
  Colour colour = Colour::off;
  int width = 100;  // columns
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

// What a quantity is to people. Implicit, so that a row is written as its values.
struct Cell {
  std::string text;
  Cell() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Cell(std::string words) : text(std::move(words)) {}
  Cell(std::string_view words) : text(words) {}
  Cell(const char* words) : text(words) {}
  Cell(Seconds time) : text(to_string(time)) {}
  Cell(Bytes bytes) : text(to_string(bytes)) {}
  Cell(Bandwidth bandwidth) : text(to_string(bandwidth)) {}
  // NOLINTEND(google-explicit-constructor)
};

// Numbers of bytes in one unit, chosen so that all can be read.
class ByteColumn {
 public:
  explicit ByteColumn(std::vector<std::int64_t> values);
  [[nodiscard]] std::string_view unit() const;  // "MiB"
  [[nodiscard]] std::string cell(std::int64_t bytes) const;

 private:
  std::size_t unit_ = 0;
  int decimals_ = 0;
};

// Times in one unit, likewise.
class TimeColumn {
 public:
  explicit TimeColumn(Seconds longest) : is_short_(longest < Seconds{2e-3}) {}
  [[nodiscard]] std::string title(std::string_view what) const;  // "start, us"
  [[nodiscard]] std::string cell(Seconds time) const;

 private:
  bool is_short_;
};

// Without what a terminal would obey instead of showing it.
[[nodiscard]] std::string printable(std::string_view text);

// How many columns of the terminal it takes.
[[nodiscard]] std::size_t display_width(std::string_view text);

// The first characters, and "…" if that is not all.
[[nodiscard]] std::string cut_to(std::string_view text, std::size_t width);

// Breaks at blanks; lines after the first are indented.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

// "1 program", "2 programs".
[[nodiscard]] std::string counted(std::int64_t number, std::string_view thing);

}  // namespace shiplap::report
