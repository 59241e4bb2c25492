// A table for a terminal or a page: text is left-aligned, numbers are right-aligned, units are in
// the header.
//
//   Table table({Column::text("exchange"), Column::numbers("bytes", 3)});
//   table.add({"forward", Bytes{4096}});
//   table.text(style);  // or to_html(table)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/report/html.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct Column {
  enum class Holds { text, numbers };
  std::string title;  // with the unit
  Holds holds = Holds::numbers;
  // If the table is too wide, columns of priority 1 to 4 are dropped, lowest first; never the first
  // column, which names the rows.
  int priority = 1;
  bool hide_if_empty = false;  // omitted from text if all its cells are empty

  [[nodiscard]] static Column text(std::string title, int priority = 1) {
    return {.title = std::move(title), .holds = Holds::text, .priority = priority};
  }
  [[nodiscard]] static Column numbers(std::string title, int priority = 1) {
    return {.title = std::move(title), .holds = Holds::numbers, .priority = priority};
  }
  [[nodiscard]] Column hidden_if_empty() const {
    Column column = *this;
    column.hide_if_empty = true;
    return column;
  }
};

// The first cell of a row names it.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: one cell per column.
  void add(std::vector<Cell> cells);
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }

  // With a header, at most style.width wide, without trailing blanks. If it is too wide, drops the
  // least important columns and truncates the longest texts.
  [[nodiscard]] std::string text(const TextStyle& style) const;

  // A long table scrolls in its own frame; only the first hundred rows of a very long one are
  // printed on paper.
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
