// Contents against a plain list of what each row holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shiplap/check/content_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {
namespace {

using testing::SizeIs;

plan::Plan plan_of_tensors() {
  return plan::parse_text(R"(shiplap-plan 1
mesh dp=1
tensor Y Other
tensor X Other a 8 b 8 c 8 sum s 4
program all on all
  compute other
)",
                          "test.plan");
}

// What a row holds: its cells, or which part of a cell.
using Row = std::vector<std::int64_t>;
using Listing = std::vector<Row>;

class ContentTest : public testing::Test {
 protected:
  Piece piece(std::int32_t rows, const std::vector<check::Run>& runs, unsigned sum = 1) {
    Content content{.tensor = plan::TensorId(std::int32_t{1}), .rows = rows};
    content.sum = sum_of(sum);
    return {.content = contents_.intern(content, runs), .rows = rows};
  }
  SumId sum_of(unsigned bits) {
    std::vector<std::int32_t> indices;
    for (std::int32_t k = 0; k < 4; ++k) {
      if ((bits >> static_cast<unsigned>(k) & 1U) != 0) indices.push_back(k);
    }
    if (indices.empty()) return contents_.sums().intern({});
    return contents_.sums().intern({{{IndexSet(std::move(indices))}}});
  }
  Listing listing(const Pieces& pieces) {
    Listing result;
    for (const Piece& piece : pieces) {
      for (std::int64_t row = 0; row < piece.rows; ++row) {
        result.push_back(contents_.cells(contents_[piece.content], row));
      }
    }
    return result;
  }

  plan::Plan plan_ = plan_of_tensors();
  Contents contents_{plan_};
};

// The coordinates of one dimension, in their order: several shapes of each count.
std::vector<std::vector<check::Run>> ways(std::int16_t dimension, std::int32_t count) {
  std::vector<std::vector<check::Run>> result;
  result.push_back({{.dimension = dimension, .begin = 1, .count = count}});
  if (count > 1) {
    result.push_back({{.dimension = dimension, .begin = 0, .count = count, .stride = 2}});
    result.push_back({{.dimension = dimension, .begin = 5, .count = 1},
                      {.dimension = dimension, .begin = 0, .count = count - 1}});
  }
  return result;
}

struct Shape {
  std::vector<check::Run> runs;
  std::int64_t cells = 1;
};

// All of 1 to 3 dimensions with 1 to 4 coordinates each, in two orders of the dimensions.
std::vector<Shape> shapes() {
  std::vector<Shape> all{{}};
  std::size_t from = 0;
  for (const int turn : {0, 1, 2}) {
    const std::size_t to = all.size();
    for (std::size_t k = from; k < to; ++k) {
      for (std::int32_t count = 1; count <= (turn == 2 ? 3 : 4); ++count) {
        for (const std::vector<check::Run>& way :
             ways(static_cast<std::int16_t>((turn + 1) % 3), count)) {
          Shape next = all[k];
          next.runs.insert(next.runs.end(), way.begin(), way.end());
          next.cells *= count;
          all.push_back(std::move(next));
        }
      }
    }
    from = to;
  }
  return all;
}

// The number of coordinates of the first dimension with several; 1 if there is none.
std::int32_t slowest_count(const Shape& shape) {
  for (std::size_t k = 0; k < shape.runs.size();) {
    std::int32_t count = 0;
    const std::int16_t dimension = shape.runs[k].dimension;
    for (; k < shape.runs.size() && shape.runs[k].dimension == dimension; ++k) {
      count += shape.runs[k].count;
    }
    if (count > 1) return count;
  }
  return 1;
}

std::string show(const Shape& shape) {
  std::string text = ":";
  for (const check::Run& run : shape.runs) {
    text += " " + std::to_string(run.dimension) + ": " + std::to_string(run.begin) + " +" +
            std::to_string(run.count) + " by " + std::to_string(run.stride);
  }
  return text;
}

// Numbers of rows such that a row has k cells, or a cell has k rows.
std::vector<std::int32_t> row_counts(std::int64_t cells) {
  std::vector<std::int32_t> result;
  for (std::int64_t k = 1; k <= cells; ++k) {
    if (cells % k == 0) result.push_back(static_cast<std::int32_t>(cells / k));
  }
  result.push_back(static_cast<std::int32_t>(2 * cells));
  result.push_back(static_cast<std::int32_t>(3 * cells));
  return result;
}

// The rows of a shape, worked out from its coordinates alone: the first dimension is the slowest.
Listing simple(const Shape& shape, std::int32_t rows) {
  std::vector<Row> cells{Row(3, 0)};
  for (std::size_t k = 0; k < shape.runs.size();) {
    const auto dimension = static_cast<std::size_t>(shape.runs[k].dimension);
    std::vector<std::int64_t> coordinates;
    for (; k < shape.runs.size() && shape.runs[k].dimension == std::int16_t(dimension); ++k) {
      for (std::int32_t n = 0; n < shape.runs[k].count; ++n) {
        coordinates.push_back(shape.runs[k].begin + n * shape.runs[k].stride);
      }
    }
    std::vector<Row> longer;
    for (const Row& cell : cells) {
      for (const std::int64_t coordinate : coordinates) {
        longer.push_back(cell);
        longer.back()[dimension] = coordinate;
      }
    }
    cells = std::move(longer);
  }
  Listing result;
  for (std::int32_t row = 0; row < rows; ++row) {
    if (rows > shape.cells) {
      const std::int64_t each = rows / shape.cells;
      result.push_back(cells[row / each]);
      result.back().push_back(row % each);
      result.back().push_back(each);
      continue;
    }
    const std::int64_t each = shape.cells / rows;
    Row& here = result.emplace_back();
    for (std::int64_t k = row * each; k < (row + 1) * each; ++k) {
      const Row& cell = cells[k];
      here.insert(here.end(), cell.begin(), cell.end());
    }
  }
  return result;
}

Listing part(const Listing& rows, std::int32_t begin, std::int32_t count) {
  return {rows.begin() + begin, rows.begin() + begin + count};
}

TEST_F(ContentTest, CellsLieInRowsAsWritten) {
  for (const Shape& shape : shapes()) {
    for (const std::int32_t rows : row_counts(shape.cells)) {
      const Piece whole = piece(rows, shape.runs);
      ASSERT_EQ(listing({whole}), simple(shape, rows)) << rows << " rows";
      EXPECT_EQ(Contents::cell_count(contents_.runs(contents_[whole.content])), shape.cells);
    }
  }
}

TEST_F(ContentTest, ASliceHoldsTheRowsOfTheWhole) {
  for (const Shape& shape : shapes()) {
    if (shape.cells > 8) continue;
    for (const std::int32_t rows : row_counts(shape.cells)) {
      const Piece whole = piece(rows, shape.runs);
      const Listing all = simple(shape, rows);
      for (std::int32_t begin = 0; begin < rows; ++begin) {
        for (std::int32_t count = 1; begin + count <= rows; ++count) {
          Pieces pieces;
          contents_.slice(whole, begin, count, pieces);
          ASSERT_EQ(listing(pieces), part(all, begin, count))
              << rows << " rows, " << begin << " +" << count;
        }
      }
    }
  }
}

// Slicing at any rows leaves the content of each row unchanged.
TEST_F(ContentTest, SlicesJoinedAreTheWhole) {
  for (const unsigned seed : {0U, 1U}) {
    std::mt19937 random(seed);
    for (const Shape& shape : shapes()) {
      for (const std::int32_t rows : row_counts(shape.cells)) {
        const Piece whole = piece(rows, shape.runs);
        Pieces pieces;
        for (std::int32_t at = 0; at < rows;) {
          const auto most = seed == 0 ? 1U : static_cast<unsigned>(rows - at);  // 0: row by row
          const auto count = static_cast<std::int32_t>(1 + random() % most);
          contents_.slice(whole, at, count, pieces);
          at += count;
        }
        contents_.join(pieces);
        ASSERT_EQ(listing(pieces), simple(shape, rows)) << rows << " rows" << show(shape);
      }
    }
  }
}

// As all_gather joins what reduce_scatter distributed.
TEST_F(ContentTest, EqualPartsOfTheSlowestDimensionJoinedAreOnePiece) {
  for (const Shape& shape : shapes()) {
    const std::int32_t slowest = slowest_count(shape);
    for (const std::int32_t rows : row_counts(shape.cells)) {
      const Piece whole = piece(rows, shape.runs);
      for (std::int32_t parts = 1; parts <= slowest; ++parts) {
        if (slowest % parts != 0 || rows % parts != 0) continue;
        Pieces pieces;
        const std::int32_t each = rows / parts;
        for (std::int32_t k = 0; k < parts; ++k) contents_.slice(whole, k * each, each, pieces);
        contents_.join(pieces);
        ASSERT_THAT(pieces, SizeIs(1)) << rows << " rows in " << parts << show(shape);
        ASSERT_TRUE(contents_.same(pieces.front(), whole));
        ASSERT_EQ(pieces.front(), whole) << rows << " rows in " << parts << show(shape);
      }
    }
  }
}

TEST_F(ContentTest, RowsOfOneDimensionJoinedAreOnePiece) {
  for (const Shape& shape : shapes()) {
    if (slowest_count(shape) != shape.cells) continue;
    for (const std::int32_t rows : row_counts(shape.cells)) {
      if (rows > shape.cells) continue;
      const Piece whole = piece(rows, shape.runs);
      Pieces pieces;
      for (std::int32_t row = 0; row < rows; ++row) contents_.slice(whole, row, 1, pieces);
      contents_.join(pieces);
      ASSERT_THAT(pieces, SizeIs(1)) << rows << " rows" << show(shape);
      ASSERT_EQ(pieces.front(), whole) << rows << " rows" << show(shape);
    }
  }
}

// Contents are the same exactly if their rows hold the same cells, however they came about.
TEST_F(ContentTest, SameMeansTheSameRows) {
  std::vector<Pieces> known;
  for (const Shape& shape : shapes()) {
    if (shape.cells != 2 && shape.cells != 4) continue;
    for (const std::int32_t rows : row_counts(shape.cells)) {
      if (rows == 2) known.push_back({piece(rows, shape.runs)});
      if (rows != 4) continue;
      Pieces half;
      contents_.slice(piece(rows, shape.runs), 1, 2, half);
      if (half.size() == 1) known.push_back(half);
    }
  }
  ASSERT_GT(known.size(), 80U);
  for (const Pieces& a : known) {
    for (const Pieces& b : known) {
      ASSERT_EQ(contents_.same(a.front(), b.front()), listing(a) == listing(b));
    }
  }
}

TEST_F(ContentTest, OneFormOfEachContentIsKept) {
  const check::Run whole{.dimension = 0, .begin = 0, .count = 4};
  const check::Run left{.dimension = 0, .begin = 0, .count = 2};
  const check::Run right{.dimension = 0, .begin = 2, .count = 2};
  const check::Run none{.dimension = 0, .begin = 7, .count = 0};
  const check::Run single{.dimension = 1, .begin = 3, .count = 1};
  const ContentId id = piece(4, {whole, single}).content;
  EXPECT_EQ(piece(4, {left, right, single}).content, id);
  EXPECT_EQ(piece(4, {none, left, right, single}).content, id);
  EXPECT_EQ(piece(4, {single, whole}).content, id);
  const check::Run strides{.dimension = 1, .begin = 3, .count = 1, .stride = 5};
  EXPECT_EQ(piece(4, {strides, whole}).content, id);
  EXPECT_EQ(piece(4, {whole, strides}).content, id);
  EXPECT_NE(piece(4, {right, left, single}).content, id);
  EXPECT_NE(piece(2, {whole, single}).content, id);
  EXPECT_NE(piece(4, {whole, single}, 2).content, id);
}

TEST_F(ContentTest, WhatWasKeptIsFoundAgainAfterManyOthers) {
  const std::vector<check::Run> runs{{.dimension = 0, .begin = 0, .count = 1}};
  const ContentId first = piece(1, runs).content;
  for (std::int32_t rows = 2; rows < 20'000; ++rows) ASSERT_NE(piece(rows, runs).content, first);
  EXPECT_EQ(piece(1, runs).content, first);
}

// All ways to write coordinates, in order, as runs with one stride.
std::vector<std::vector<check::Run>> spellings(const std::vector<std::int32_t>& coordinates) {
  if (coordinates.empty()) return {{}};
  std::vector<std::vector<check::Run>> result;
  const std::int32_t step = coordinates.size() > 1 ? coordinates[1] - coordinates[0] : 0;
  for (std::size_t count = 1; count <= coordinates.size(); ++count) {
    if (count > 1 && (step <= 0 || coordinates[count - 1] - coordinates[count - 2] != step)) break;
    // The stride of a run with one coordinate does not matter.
    const check::Run first{.begin = coordinates[0],
                           .count = static_cast<std::int32_t>(count),
                           .stride = count > 1 ? step : 3};
    const auto rest = coordinates.begin() + static_cast<std::ptrdiff_t>(count);
    for (std::vector<check::Run> runs : spellings({rest, coordinates.end()})) {
      runs.insert(runs.begin(), first);
      result.push_back(std::move(runs));
    }
  }
  return result;
}

TEST_F(ContentTest, HoweverCoordinatesAreWrittenTheyAreOneContent) {
  std::map<ContentId, std::vector<std::int32_t>> known;
  for (std::size_t count = 1; count <= 5; ++count) {
    std::vector<std::int32_t> coordinates(count, 0);
    for (bool more = true; more;) {
      const auto rows = static_cast<std::int32_t>(count);
      const std::vector<std::vector<check::Run>> all = spellings(coordinates);
      const ContentId id = piece(rows, all.front()).content;
      Listing expected;
      for (const std::int32_t coordinate : coordinates) expected.push_back({coordinate, 0, 0});
      ASSERT_EQ(listing({piece(rows, all.front())}), expected) << show({all.front(), rows});
      for (const std::vector<check::Run>& runs : all) {
        ASSERT_EQ(piece(rows, runs).content, id) << show({runs, rows});
      }
      ASSERT_TRUE(known.emplace(id, coordinates).second) << show({all.front(), rows});
      more = false;
      for (std::size_t k = 0; k < count && !more; ++k) {
        coordinates[k] = (coordinates[k] + 1) % 5;
        more = coordinates[k] != 0;
      }
    }
  }
}

// Joined rows keep their contents, whether they continue each other or not.
TEST_F(ContentTest, PiecesJoinedHoldWhatTheyHeld) {
  Pieces some;
  for (const std::int32_t bits : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
    const check::Run a{.dimension = 0, .begin = bits & 1, .count = 1 + (bits >> 1 & 1)};
    const check::Run b{.dimension = 1, .begin = bits >> 2 & 1, .count = 1 + (bits >> 3 & 1)};
    const std::int32_t cells = a.count * b.count;
    for (const std::int32_t rows : {cells, 2 * cells, 1}) {
      some.push_back(piece(rows, {a, b}));
      some.push_back(piece(rows, {b, a}));
      some.push_back(piece(rows, {a, b}, 2));
    }
  }
  for (const std::int32_t begin : {0, 3}) {
    const std::vector<check::Run> runs{{.dimension = 0, .begin = 0, .count = 2},
                                       {.dimension = 1, .begin = begin, .count = 3}};
    for (const std::int32_t row : {0, 1, 2}) contents_.slice(piece(3, runs), row, 1, some);
  }
  for (const Piece& a : some) {
    for (const Piece& b : some) {
      Pieces pieces{a, b};
      const Listing before = listing(pieces);
      contents_.join(pieces);
      ASSERT_EQ(listing(pieces), before);
    }
  }
}

// Sums are united row for row, as their sets are.
TEST_F(ContentTest, UnionsFollowTheSums) {
  const std::vector<check::Run> runs{{.dimension = 0, .begin = 0, .count = 2}};
  for (unsigned a = 0; a < 16; ++a) {
    for (unsigned b = 0; b < 16; ++b) {
      const Contents::Union both = contents_.unite(piece(2, runs, a), piece(2, runs, b));
      const std::array<Piece, 2> pieces{piece(2, runs, a), piece(2, runs, b)};
      const std::optional<Piece> at_once = contents_.unite(pieces);
      EXPECT_EQ(at_once.has_value(), (a & b) == 0);
      if ((a & b) != 0) {
        EXPECT_EQ(both.conflict, Contents::Conflict::duplicate);
        continue;
      }
      EXPECT_EQ(both.conflict, Contents::Conflict::none);
      EXPECT_EQ(both.piece, piece(2, runs, a | b));
      EXPECT_EQ(at_once, std::optional(both.piece));
    }
  }
}

TEST_F(ContentTest, UnionsOfWhatDoesNotFitAreConflicts) {
  using Conflict = Contents::Conflict;
  const std::vector<check::Run> runs{{.dimension = 0, .begin = 0, .count = 2}};
  const std::vector<check::Run> others{{.dimension = 0, .begin = 1, .count = 2}};
  const Piece one = piece(2, runs, 1);
  const Piece two = piece(2, runs, 2);
  const Piece zero = piece(2, runs, 0);
  const Piece half = contents_.scaled(two, plan::Ratio(1, 2));
  EXPECT_EQ(contents_.unite(one, piece(2, others, 2)).conflict, Conflict::other_cells);
  EXPECT_EQ(contents_.unite(one, half).conflict, Conflict::other_scale);
  EXPECT_EQ(contents_.unite(zero, half).piece, half);
  EXPECT_EQ(contents_.unite(half, zero).piece, half);
  EXPECT_EQ(contents_.unite(one, {.rows = 2, .state = RowState::uninitialized}).conflict,
            Conflict::uninitialized);
  EXPECT_EQ(contents_.unite(one, {.rows = 2, .state = RowState::unallocated}).conflict,
            Conflict::unallocated);
  const Contents::Union unknown = contents_.unite({.rows = 2, .state = RowState::unknown}, one);
  EXPECT_EQ(unknown.conflict, Conflict::none);
  EXPECT_EQ(unknown.piece.state, RowState::unknown);
  EXPECT_EQ(contents_.unite(std::array{one, half}), std::nullopt);
  EXPECT_EQ(contents_.unite(std::array{zero, half, zero}), std::optional(half));
}

TEST_F(ContentTest, ScalesMultiply) {
  const Piece one = piece(2, {{.dimension = 0, .begin = 0, .count = 2}});
  const Piece half = contents_.scaled(one, plan::Ratio(1, 2));
  EXPECT_NE(half, one);
  EXPECT_FALSE(contents_.same(half, one));
  EXPECT_EQ(contents_.scaled(half, plan::Ratio(2, 1)), one);
  EXPECT_EQ(contents_.scaled(half, plan::Ratio(2, 3)), contents_.scaled(one, plan::Ratio(1, 3)));
  const Piece zero = piece(2, {{.dimension = 0, .begin = 0, .count = 2}}, 0);
  EXPECT_EQ(contents_.scaled(zero, plan::Ratio(1, 2)), zero);
  const Piece unknown{.rows = 2, .state = RowState::unknown};
  EXPECT_EQ(contents_.scaled(unknown, plan::Ratio(1, 2)), unknown);
  const Piece least = contents_.scaled(one, plan::Ratio(1, std::int64_t{1} << 62U));
  EXPECT_EQ(least.state, RowState::known);
  EXPECT_EQ(contents_.scaled(least, plan::Ratio(1, 4)).state, RowState::overflow);
}

// Contents along an axis are fitted to one affine content; binding it gives them back.
TEST_F(ContentTest, FitAndBindAreInverse) {
  for (const std::int32_t move : {0, 1, 2}) {
    for (const std::int32_t count : {1, 2}) {
      for (std::size_t size = 1; size <= 3; ++size) {
        for (std::size_t axis = 0; axis < 2; ++axis) {
          std::vector<Piece> family;
          for (std::int32_t k = 0; k < std::int32_t(size); ++k) {
            family.push_back(piece(count, {{.dimension = 0, .begin = 1 + k * move, .count = count},
                                           {.dimension = 1, .begin = 3, .count = 1}}));
          }
          const Piece fitted = contents_.fit_affine(family, axis, 2);
          for (std::size_t k = 0; k < size; ++k) {
            std::array<std::int64_t, 2> positions{-1, -1};
            positions[axis] = std::int64_t(k);
            EXPECT_EQ(contents_.bind(fitted, positions), family[k]);
          }
          EXPECT_EQ(fitted == family.front(), size == 1 || move == 0);
        }
      }
    }
  }
}

// Contents that are affine along one axis can be fitted along a second one, and bound in any order.
TEST_F(ContentTest, FitsAlongTwoAxesBindInAnyOrder) {
  const auto at = [&](std::int32_t i, std::int32_t k) {
    return piece(1, {{.dimension = 0, .begin = i, .count = 1},
                     {.dimension = 1, .begin = 2 * k, .count = 1}});
  };
  std::vector<Piece> rows;
  for (std::int32_t i = 0; i < 3; ++i) {
    rows.push_back(contents_.fit_affine(std::array{at(i, 0), at(i, 1), at(i, 2)}, 1, 2));
  }
  const Piece all = contents_.fit_affine(rows, 0, 2);
  for (std::int32_t i = 0; i < 3; ++i) {
    for (std::int32_t k = 0; k < 3; ++k) {
      const Piece first = contents_.bind(all, std::array<std::int64_t, 2>{i, -1});
      EXPECT_EQ(first, rows[i]);
      EXPECT_EQ(contents_.bind(first, std::array<std::int64_t, 2>{-1, k}), at(i, k));
      EXPECT_EQ(contents_.bind(all, std::array<std::int64_t, 2>{i, k}), at(i, k));
    }
  }
}

TEST_F(ContentTest, WhatDoesNotMoveEvenlyIsAsymmetric) {
  const auto at = [&](std::int32_t begin) {
    return piece(1, {{.dimension = 0, .begin = begin, .count = 1}});
  };
  EXPECT_THROW((void)contents_.fit_affine(std::array{at(0), at(1), at(3)}, 0, 1), Asymmetric);
  EXPECT_THROW((void)contents_.fit_affine(
                   std::array{at(0), Piece{.rows = 1, .state = RowState::uninitialized}}, 0, 1),
               Asymmetric);
  EXPECT_THROW((void)contents_.fit_affine(std::array{at(0), piece(2, {{.count = 2}})}, 0, 1),
               Asymmetric);
}

TEST_F(ContentTest, WhatIsNotStatedIsSlicedAndJoinedByItsNature) {
  Pieces pieces;
  const Piece nothing{.rows = 3, .state = RowState::uninitialized};
  contents_.slice(nothing, 0, 1, pieces);
  contents_.slice(nothing, 1, 2, pieces);
  contents_.slice({.rows = 3, .state = RowState::unallocated}, 1, 2, pieces);
  contents_.slice(nothing, 1, 0, pieces);
  EXPECT_THAT(pieces, SizeIs(3));
  contents_.join(pieces);
  ASSERT_THAT(pieces, SizeIs(2));
  EXPECT_EQ(pieces[0], nothing);
  EXPECT_EQ(pieces[1].state, RowState::unallocated);
}

TEST(ContentStore, KeepsThemWhereTheyAre) {
  constexpr std::int32_t kCount = 60'000;  // of two blocks
  ContentStore store;
  const auto length = [](std::int32_t k) {
    return static_cast<std::size_t>(k % 997 == 0 ? 3000 : k % 29);
  };
  std::vector<ContentId> ids;
  std::vector<const Content*> places;
  for (std::int32_t k = 0; k < kCount; ++k) {
    const std::vector<check::Run> runs(length(k), {.begin = k, .count = 1});
    ids.push_back(store.add({.rows = k}, runs));
    places.push_back(&store[ids.back()]);
  }
  for (std::int32_t k = 0; k < kCount; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const Content& content = store[ids[at]];
    ASSERT_EQ(&content, places[at]);
    ASSERT_EQ(content.rows, k);
    ASSERT_EQ(Contents::runs(content).size(), length(k));
    for (const check::Run& run : Contents::runs(content)) ASSERT_EQ(run.begin, k);
  }
}

}  // namespace
}  // namespace shiplap::check
