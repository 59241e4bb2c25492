// A heat map of the bytes from rank to rank: senders as rows, receivers as columns.
//
// One hue; pairs without traffic have the background colour; the margins show the totals sent and
// received; node borders are drawn. Above 64 ranks, neighbouring ranks share a row, and the caption
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
  std::string name;  // of the data: "Queries"
  int ranks = 1;
  int ranks_per_node = 1;   // consecutive ones
  int max_rows = 64;        // above it, rows are folded
  std::vector<Cell> cells;  // in any order. Bytes that stay on their rank are shown, but not summed
};

// The drawn matrix: ranks [i * ranks_per_row, (i + 1) * ranks_per_row) are row and column i. Bytes
// between two ranks of a row count; bytes that stay on their rank do not.
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
