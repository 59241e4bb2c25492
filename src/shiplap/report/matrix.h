// How many bytes go from which rank to which: a square, senders as rows, receivers as columns.
//
// One hue; nothing sent is background; what each sends and receives in all stands at the margins;
// the borders of nodes are drawn. Above 64 ranks neighbouring ranks are one row, and the caption
// says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/report/html.h"

namespace shiplap::report {

struct Matrix {
  struct Cell {
    int from = 0;
    int to = 0;
    std::int64_t bytes = 0;
  };
  std::string name;  // of what is sent: "Queries"
  int ranks = 1;
  int ranks_per_node = 1;   // consecutive ones
  std::vector<Cell> cells;  // in any order. What stays on its rank is told, but not summed
};

// As it is drawn: ranks [i * ranks_per_row, (i + 1) * ranks_per_row) are row and column i. What
// goes from one rank of a row to another of it counts; what stays on its rank does not.
struct FoldedMatrix {
  int rows = 1;
  int ranks_per_row = 1;
  std::vector<std::int64_t> bytes;  // row after row
  std::vector<std::int64_t> stays;  // by row
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  std::int64_t total = 0;
};
[[nodiscard]] FoldedMatrix folded(const Matrix& matrix);

[[nodiscard]] Html to_html(const Matrix& matrix);

}  // namespace shiplap::report
