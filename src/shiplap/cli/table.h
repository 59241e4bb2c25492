// A table of text that fits the window: numbers to the right, the unit in the header, and where
// there is no room, the least important columns left out and the longest words cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/units.h"

namespace shiplap::cli {

enum class Align { left, right };

struct Column {
  std::string title;
  Align align = Align::left;
  int worth = 1;          // where there is no room, columns of worth 1 to 4 go, the least first
  bool optional = false;  // left out if no row has anything in it
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell per column.
  void add(std::vector<std::string> cells);

  // With a header, no wider than `width`, no blanks at the ends of lines.
  [[nodiscard]] std::string text(int width, Colour colour) const;

 private:
  struct Layout {
    std::vector<std::size_t> shown;   // columns
    std::vector<std::size_t> widths;  // by column
  };
  [[nodiscard]] Layout layout(std::size_t width) const;
  [[nodiscard]] std::string line(const Layout& layout, const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
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

}  // namespace shiplap::cli
