// A table of a page: words to the left, numbers to the right, in figures of one width.
#pragma once

#include <string>
#include <vector>

#include "shiplap/report/html.h"

namespace shiplap::report {

struct Column {
  enum class Holds { words, numbers };
  std::string title;  // with the unit
  Holds holds = Holds::numbers;
};

// The first cell of a row names it. A long table scrolls in its own frame; of a
// very long one the first hundred rows are printed.
struct Table {
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // a cell per column
};
[[nodiscard]] Html to_html(const Table& table);

}  // namespace shiplap::report
