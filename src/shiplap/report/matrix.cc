#include "shiplap/report/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/base/units.h"

namespace shiplap::report {
namespace {

constexpr int kMaxRowsWithNumbers = 10;  // in the cells
constexpr int kMaxRowsWithTotals = 20;   // at the margins; above, bars only

// In units of the figure, which is about 396 units wide on any screen.
constexpr double kLeft = 44;
constexpr double kTop = 40;
constexpr double kSide = 292;
constexpr double kMargin = 54;  // right and below, for the totals
constexpr double kGap = 5;      // between the square and the totals
constexpr double kBar = 44;     // the longest bar
constexpr double kLabelHeight = 13;
constexpr double kDigitWidth = 6.5;

constexpr double kMinOpacity = 0.12;    // of nonempty cells
constexpr double kDarkTextFrom = 0.62;  // above this, text on a cell is dark in both colour schemes

// Ranks per row. A row spans parts of two nodes only if unavoidable.
int ranks_per_row(const Matrix& matrix) {
  int size = (matrix.ranks + matrix.max_rows - 1) / matrix.max_rows;
  const int node = matrix.ranks_per_node;
  if (size >= node) return (size + node - 1) / node * node;
  while (node % size != 0) ++size;
  return size;
}

// A common unit for all numbers, named in the caption.
struct Scale {
  std::string_view unit;
  double bytes;

  [[nodiscard]] std::string text(std::int64_t value) const {
    const double scaled = static_cast<double>(value) / bytes;
    if (bytes == 1) return fmt::format("{:.0f}", scaled);
    if (value > 0 && scaled < 0.005) return "<0.01";
    return fmt::format("{:.{}f}", scaled, scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0);
  }
};

Scale scale_for(std::int64_t largest) {
  constexpr std::array<std::string_view, 5> kByteUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double bytes = 1;
  while (unit + 1 < kByteUnits.size() && static_cast<double>(largest) >= 1024 * bytes) {
    ++unit;
    bytes *= 1024;
  }
  return {.unit = kByteUnits[unit], .bytes = bytes};
}

class MatrixDrawing {
 public:
  explicit MatrixDrawing(const Matrix& matrix)
      : matrix_(matrix),
        folded_(folded(matrix)),
        largest_(std::ranges::max(folded_.bytes)),
        scale_(scale_for(largest_)),
        side_(kSide / folded_.rows) {}

  std::string figure();

 private:
  [[nodiscard]] std::string ranks(int row) const;
  [[nodiscard]] std::string caption() const;
  // If a row is one or more whole nodes, every line would be a border.
  [[nodiscard]] bool has_node_borders() const {
    return folded_.ranks_per_row < matrix_.ranks_per_node && matrix_.ranks > matrix_.ranks_per_node;
  }
  // Every how many rows there is a label of size `label`: a power of two.
  [[nodiscard]] int every(double label) const {
    int rows = 1;
    while (rows * side_ < label) rows *= 2;
    return rows;
  }
  void key();
  void labels();
  void cells();
  void cell(int from, int to);
  void borders();
  void totals();
  void total(int row, std::string_view side, std::int64_t bytes);

  // Adds to the picture.
  template <typename... Values>
  void draw(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  const Matrix& matrix_;
  FoldedMatrix folded_;
  std::int64_t largest_;
  Scale scale_;
  double side_;  // of a cell
  std::string out_;
};

std::string MatrixDrawing::ranks(int row) const {
  const int first = row * folded_.ranks_per_row;
  const int last = std::min(first + folded_.ranks_per_row, matrix_.ranks) - 1;
  return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {}-{}", first, last);
}

std::string MatrixDrawing::caption() const {
  std::string text = fmt::format("<b>{}</b>: {} between ranks", escaped(matrix_.name),
                                 to_string(Bytes{folded_.total}));
  if (folded_.rows <= kMaxRowsWithNumbers) text += fmt::format("; numbers in {}", scale_.unit);
  const int per_row = folded_.ranks_per_row;
  const int per_node = matrix_.ranks_per_node;
  if (per_row > 1) {
    text += fmt::format(". Folded: each row and column is {} ranks", per_row);
    if (per_row == per_node) text += ", one node";
    if (per_row > per_node && per_node > 1) text += fmt::format(", {} nodes", per_row / per_node);
  }
  if (has_node_borders()) text += ". Strong lines are borders of nodes";
  return text + ".";
}

// The colour key.
void MatrixDrawing::key() {
  draw("<p class=\"key\">0 <span class=\"swatch intensity\"></span> {} per cell</p>\n",
       to_string(Bytes{largest_}));
}

void MatrixDrawing::labels() {
  draw("<text x=\"{}\" y=\"12\" class=\"mid soft\">to rank</text>\n", kLeft + kSide / 2);
  draw("<text x=\"9\" y=\"{0}\" class=\"mid soft\" transform=\"rotate(-90 9 {0})\">",
       kTop + kSide / 2);
  draw("from rank</text>\n");
  const int below = every(kLabelHeight);
  for (int row = 0; row < folded_.rows; row += below) {
    draw("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"end\">{}</text>", kLeft - 4,
         kTop + (row + 0.5) * side_ + 3.5, row * folded_.ranks_per_row);
  }
  const auto digits = std::to_string(matrix_.ranks - 1).size();
  const int beside = every(kDigitWidth * static_cast<double>(digits + 1));
  for (int row = 0; row < folded_.rows; row += beside) {
    draw("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"mid\">{}</text>\n", kLeft + (row + 0.5) * side_,
         kTop - 5, row * folded_.ranks_per_row);
  }
}

void MatrixDrawing::cell(int from, int to) {
  const std::int64_t bytes = folded_.bytes[from * folded_.rows + to];
  const std::int64_t stays = from == to ? folded_.stays[from] : 0;
  if (bytes == 0 && stays == 0) return;
  const double x = kLeft + to * side_;
  const double level = bytes == 0 ? 0
                                  : kMinOpacity + (1 - kMinOpacity) * static_cast<double>(bytes) /
                                                      static_cast<double>(largest_);
  draw("<g class=\"m\"><rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"", x,
       kTop + from * side_, side_, side_);
  draw(" fill-opacity=\"{:.2f}\"/>", level);
  if (folded_.rows <= kMaxRowsWithNumbers && bytes > 0) {
    draw("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"mid{}\">{}</text>", x + side_ / 2,
         kTop + (from + 0.5) * side_ + 3.5, level > kDarkTextFrom ? " on" : "", scale_.text(bytes));
  }
  draw("<title>");
  if (bytes > 0) {
    draw("{} to {}: {} ({} bytes)", ranks(from), ranks(to), to_string(Bytes{bytes}),
         with_separators(bytes));
  }
  if (stays > 0) {
    draw("{}{}: {} stay in place", bytes > 0 ? "\n" : "", ranks(from), to_string(Bytes{stays}));
  }
  draw("</title></g>\n");
}

void MatrixDrawing::cells() {
  for (int from = 0; from < folded_.rows; ++from) {
    draw("<g class=\"row\">\n");
    for (int to = 0; to < folded_.rows; ++to) cell(from, to);
    draw("</g>\n");
  }
}

void MatrixDrawing::borders() {
  const int per_row = folded_.ranks_per_row;
  draw("<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft, kTop, kSide,
       kSide);
  if (per_row == 1) {
    draw("<path class=\"diagonal\" d=\"M{} {}l{} {}\"/>\n", kLeft, kTop, kSide, kSide);
  }
  if (!has_node_borders()) return;
  for (int rank = matrix_.ranks_per_node; rank < matrix_.ranks; rank += matrix_.ranks_per_node) {
    const double offset = side_ * rank / per_row;
    draw("<path class=\"node\" d=\"M{:.2f} {}v{}M{} {:.2f}h{}\"/>\n", kLeft + offset, kTop, kSide,
         kLeft, kTop + offset, kSide);
  }
}

void MatrixDrawing::total(int row, std::string_view side, std::int64_t bytes) {
  const bool is_sent = side == "sent";
  const std::int64_t most = std::ranges::max(is_sent ? folded_.sent : folded_.received);
  const double length =
      most == 0 ? 0 : kBar * static_cast<double>(bytes) / static_cast<double>(most);
  const double thickness = std::max(side_ - 1, side_ * 0.8);
  const double across = (row + 0.5) * side_ - thickness / 2;
  const double beyond = kSide + kGap;
  draw("<g class=\"m\"><rect class=\"total\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" ",
       kLeft + (is_sent ? beyond : across), kTop + (is_sent ? across : beyond),
       is_sent ? length : thickness);
  draw("height=\"{:.2f}\"/>", is_sent ? thickness : length);
  if (folded_.rows <= kMaxRowsWithTotals) {
    const double middle = (row + 0.5) * side_;
    const bool is_turned = !is_sent && folded_.rows > kMaxRowsWithNumbers;
    const double x = kLeft + (is_sent ? beyond + 3 : middle + (is_turned ? 3.5 : 0));
    const double y = kTop + (is_sent ? middle + 3.5 : beyond + (is_turned ? 3 : 12));
    draw("<text x=\"{:.1f}\" y=\"{:.1f}\"", x, y);
    if (is_turned) draw(" class=\"end\" transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y);
    if (!is_sent && !is_turned) draw(" class=\"mid\"");
    draw(">{}</text>", scale_.text(bytes));
  }
  draw("<title>{} {}: {} in all ({} bytes)</title></g>\n", ranks(row), side,
       to_string(Bytes{bytes}), with_separators(bytes));
}

void MatrixDrawing::totals() {
  draw("<text x=\"{}\" y=\"{}\" class=\"soft\">sent</text>\n", kLeft + kSide + kGap, kTop - 5);
  draw("<text x=\"{}\" y=\"{}\" class=\"soft end\">recv.</text>\n", kLeft - 4,
       kTop + kSide + kGap + 12);
  draw("<g class=\"row\">\n");
  for (int row = 0; row < folded_.rows; ++row) total(row, "sent", folded_.sent[row]);
  draw("</g>\n<g class=\"row\">\n");
  for (int row = 0; row < folded_.rows; ++row) total(row, "received", folded_.received[row]);
  draw("</g>\n");
}

std::string MatrixDrawing::figure() {
  draw("<figure class=\"matrix\">\n<figcaption>{}</figcaption>\n", caption());
  key();
  draw("<svg viewBox=\"0 0 {} {}\" tabindex=\"0\" role=\"group\" aria-label=\"{}, bytes from rank ",
       kLeft + kSide + kMargin, kTop + kSide + kMargin, escaped(matrix_.name));
  draw("to rank; arrow keys move through the cells\">\n");
  labels();
  cells();
  borders();
  totals();
  draw("</svg>\n</figure>\n");
  return std::move(out_);
}

}  // namespace

FoldedMatrix folded(const Matrix& matrix) {
  ensure(matrix.ranks > 0 && matrix.ranks_per_node > 0, "a matrix has ranks, and a node too");
  const int per_row = ranks_per_row(matrix);
  FoldedMatrix result{.rows = (matrix.ranks + per_row - 1) / per_row, .ranks_per_row = per_row};
  result.bytes.resize(at(result.rows) * at(result.rows));
  for (auto* sums : {&result.stays, &result.sent, &result.received}) sums->resize(at(result.rows));
  for (const Matrix::Cell& cell : matrix.cells) {
    const int from = cell.from / per_row;
    const int to = cell.to / per_row;
    if (cell.from == cell.to) {
      result.stays[from] += cell.bytes;
      continue;
    }
    result.bytes[from * result.rows + to] += cell.bytes;
    result.sent[from] += cell.bytes;
    result.received[to] += cell.bytes;
    result.total += cell.bytes;
  }
  return result;
}

Html to_html(const Matrix& matrix) { return {MatrixDrawing(matrix).figure()}; }

}  // namespace shiplap::report
