// A table, for a terminal and for a page: words to the left, numbers to the right, the unit in the
// header.
//
//   Table table({Column::words("way"), Column::numbers("bytes", 3)});
//   table.add({"there", Bytes{4096}});
//   table.text(look);  // or to_html(table)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/report/html.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct Column {
  enum class Holds { words, numbers };
  std::string title;  // with the unit
  Holds holds = Holds::numbers;
  int worth = 1;        // where there is no room, columns of worth 1 to 4 go, the least first
  bool if_any = false;  // left out of a text if no row has anything in it

  [[nodiscard]] static Column words(std::string title, int worth = 1) {
    return {.title = std::move(title), .holds = Holds::words, .worth = worth};
  }
  [[nodiscard]] static Column numbers(std::string title, int worth = 1) {
    return {.title = std::move(title), .holds = Holds::numbers, .worth = worth};
  }
  [[nodiscard]] Column shown_if_any() const {
    Column column = *this;
    column.if_any = true;
    return column;
  }
};

// The first cell of a row names it.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A cell per column.
  void add(std::vector<Cell> cells);
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }

  // With a header, no wider than that, no blanks at the ends of lines: where there is no room, the
  // least important columns are left out and the longest words cut.
  [[nodiscard]] std::string text(const TextLook& look) const;

  // A long table scrolls in its own frame; of a very long one the first hundred rows are printed.
  friend Html to_html(const Table& table);

 private:
  struct Layout {
    std::vector<std::size_t> shown;   // columns
    std::vector<std::size_t> widths;  // by column
  };
  [[nodiscard]] Layout layout(std::size_t width) const;
  [[nodiscard]] std::string line(const Layout& layout, const std::vector<Cell>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};
[[nodiscard]] Html to_html(const Table& table);

}  // namespace shiplap::report
