#include "shiplap/report/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace shiplap::report {
namespace {

using testing::HasSubstr;
using testing::Not;

// Every rank sends 1 + (from + 2 * to) % 7 bytes to every rank, itself included.
Matrix example(int ranks, int ranks_per_node) {
  Matrix matrix{.name = "Queries", .ranks = ranks, .ranks_per_node = ranks_per_node};
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      matrix.cells.push_back({.from = from, .to = to, .bytes = 1 + (from + 2 * to) % 7});
    }
  }
  return matrix;
}

std::int64_t sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

TEST(Folded, LosesNothing) {
  for (const int ranks : {1, 2, 8, 63, 64, 65, 100, 200, 513}) {
    for (const int ranks_per_node : {1, 4, 6, 8, 72}) {
      const Matrix matrix = example(ranks, ranks_per_node);
      std::int64_t moved = 0;
      std::int64_t stays = 0;
      for (const Matrix::Cell& cell : matrix.cells) {
        (cell.from == cell.to ? stays : moved) += cell.bytes;
      }
      const FoldedMatrix small = folded(matrix);
      EXPECT_EQ(small.total, moved);
      EXPECT_EQ(sum(small.bytes), moved);
      EXPECT_EQ(sum(small.sent), moved);
      EXPECT_EQ(sum(small.received), moved);
      EXPECT_EQ(sum(small.stays), stays);
    }
  }
}

TEST(Folded, NeverHasMoreThan64Rows) {
  for (int ranks = 1; ranks <= 300; ++ranks) {
    const FoldedMatrix small = folded({.ranks = ranks, .ranks_per_node = 8});
    EXPECT_LE(small.rows, 64);
    EXPECT_GE(small.rows * small.ranks_per_row, ranks);
    EXPECT_EQ(small.ranks_per_row == 1, ranks <= 64);
  }
}

TEST(Folded, CutsNoNode) {
  EXPECT_EQ(folded({.ranks = 512, .ranks_per_node = 8}).ranks_per_row, 8);
  EXPECT_EQ(folded({.ranks = 4096, .ranks_per_node = 8}).ranks_per_row, 64);
  EXPECT_EQ(folded({.ranks = 320, .ranks_per_node = 8}).ranks_per_row, 8);
  EXPECT_EQ(folded({.ranks = 600, .ranks_per_node = 8}).ranks_per_row, 16);
}

TEST(MatrixHtml, SaysThatItIsFolded) {
  EXPECT_THAT(to_html(example(64, 8)).markup, Not(HasSubstr("Folded")));
  EXPECT_THAT(to_html(example(65, 8)).markup, HasSubstr("Folded: each row and column is 2 ranks"));
  EXPECT_THAT(to_html(example(128, 2)).markup, HasSubstr("2 ranks, one node."));
}

TEST(MatrixHtml, DrawsNoBoxWhereNothingGoes) {
  const Matrix matrix{.name = "a", .ranks = 3, .cells = {{.from = 0, .to = 2, .bytes = 5}}};
  const std::string markup = to_html(matrix).markup;
  EXPECT_THAT(markup, HasSubstr("rank 0 to rank 2: 5 B (5 bytes)"));
  EXPECT_THAT(markup, Not(HasSubstr("rank 2 to rank 0")));
}

TEST(MatrixHtml, OfNothingIsStillASquare) {
  EXPECT_THAT(to_html(Matrix{.name = "a<b", .ranks = 2}).markup, HasSubstr("a&lt;b"));
}

}  // namespace
}  // namespace shiplap::report
