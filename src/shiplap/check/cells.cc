// Which cells the rows of a content have, and whether two contents have the same in the same order.
#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/content_internal.h"

namespace shiplap::check {
namespace {

// Comparing two orders of cells takes so many steps at most, each as many cells as follow each
// other in both.
constexpr std::int64_t kMaxStepsCompared = 50'000'000;

// Goes through the cells of a content in their order, a run of coordinates at a time.
class CellCursor {
 public:
  CellCursor(std::span<const Run> runs, std::int64_t cell, std::size_t dimensions)
      : runs_(runs), coordinates_(dimensions), slopes_(dimensions) {
    for (std::size_t end = runs.size(); end > 0;) {  // the last dimension changes fastest
      Digit digit{.begin = end};
      while (digit.begin > 0 && runs[digit.begin - 1].dimension == runs[end - 1].dimension) {
        digit.count += runs[--digit.begin].count;
      }
      std::int64_t value = cell % digit.count;
      cell /= digit.count;
      digit.run = digit.begin;
      while (value >= runs[digit.run].count) value -= runs[digit.run++].count;
      digit.in_run = value;
      digit.end = end;
      end = digit.begin;
      digits_.push_back(digit);
      write(digits_.back());
    }
  }

  [[nodiscard]] const std::vector<std::int64_t>& coordinates() const { return coordinates_; }
  [[nodiscard]] const std::vector<std::int32_t>& slopes() const { return slopes_; }
  // Cells from here to the end of the run of the dimension that changes fastest.
  [[nodiscard]] std::int64_t in_run() const {
    return digits_.empty() ? 1 : runs_[digits_.front().run].count - digits_.front().in_run;
  }
  [[nodiscard]] bool goes_on_like(const CellCursor& other) const {
    const Run& here = runs_[digits_.front().run];
    const Run& there = other.runs_[other.digits_.front().run];
    return here.dimension == there.dimension && here.stride == there.stride;
  }
  // Promises that there are so many in the run.
  void skip(std::int64_t cells) {
    if (digits_.empty()) return;
    digits_.front().in_run += cells;
    for (Digit& digit : digits_) {
      if (digit.in_run == runs_[digit.run].count) {
        digit.in_run = 0;
        ++digit.run;
      }
      const bool carry = digit.run == digit.end;
      if (carry) digit.run = digit.begin;
      write(digit);
      if (!carry) return;
      if (&digit != &digits_.back()) ++(&digit + 1)->in_run;
    }
  }

 private:
  struct Digit {
    std::size_t begin = 0;  // its runs
    std::size_t end = 0;
    std::int64_t count = 0;
    std::size_t run = 0;
    std::int64_t in_run = 0;
  };
  void write(const Digit& digit) {
    const Run& run = runs_[digit.run];
    const auto dimension = static_cast<std::size_t>(run.dimension);
    coordinates_[dimension] = run.begin + digit.in_run * run.stride;
    slopes_[dimension] = run.slope;
  }

  std::span<const Run> runs_;
  std::vector<Digit> digits_;
  std::vector<std::int64_t> coordinates_;
  std::vector<std::int32_t> slopes_;
};

}  // namespace

std::vector<std::int64_t> Contents::cells(const Content& content, std::int64_t row) const {
  const std::span<const Run> all = runs(content);
  const std::int64_t total = cell_count(all);
  const std::int64_t rows = content.of == 0 ? content.rows : content.of;
  row += content.first;
  std::vector<std::int64_t> result;
  const auto add_cell = [&](std::int64_t cell) {
    std::vector<std::int64_t> at(tensor(content).part.size());
    for (std::size_t end = all.size(); end > 0;) {
      std::size_t begin = end;
      std::int64_t count = 0;
      while (begin > 0 && all[begin - 1].dimension == all[end - 1].dimension) {
        count += all[--begin].count;
      }
      std::int64_t k = cell % count;
      cell /= count;
      for (std::size_t run = begin; run < end; ++run) {
        if (k < all[run].count) {
          at[all[run].dimension] = all[run].begin + k * all[run].stride;
          break;
        }
        k -= all[run].count;
      }
      end = begin;
    }
    result.insert(result.end(), at.begin(), at.end());
  };
  if (total >= rows) {
    const std::int64_t each = total / rows;
    for (std::int64_t k = 0; k < each; ++k) add_cell(row * each + k);
  } else {
    const std::int64_t each = rows / total;
    add_cell(row / each);
    result.push_back(row % each);
    result.push_back(each);
  }
  return result;
}

// Promises that both have as many rows.
bool Contents::same_cells(const Content& x, const Content& y) const {
  const Layout in_x = layout(x);
  const Layout in_y = layout(y);
  if (in_x.cells_per_row != in_y.cells_per_row || in_x.rows_per_cell != in_y.rows_per_cell ||
      in_x.phase != in_y.phase) {
    return false;
  }
  std::int64_t left = in_x.cells;
  CellCursor at_x(runs(x), in_x.first, tensor(x).part.size());
  CellCursor at_y(runs(y), in_y.first, tensor(y).part.size());
  bool same_slopes = true;
  for (std::int64_t steps = 0; left > 0; ++steps) {
    if (steps == kMaxStepsCompared) {
      throw InputError(
          {.code = "D632",
           .what = fmt::format("two orders of {} cells of `{}` are too long to compare",
                               with_separators(in_x.cells), tensor(x).name),
           .why = fmt::format("they are compared in {} steps at most",
                              with_separators(kMaxStepsCompared)),
           .help = "state the cells in the order in which they are held, or in larger parts"});
    }
    const std::int64_t count = std::min({left, at_x.in_run(), at_y.in_run()});
    if (at_x.coordinates() != at_y.coordinates()) return false;
    if (count > 1 && !at_x.goes_on_like(at_y)) return false;
    same_slopes = same_slopes && at_x.slopes() == at_y.slopes();
    left -= count;
    at_x.skip(count);
    at_y.skip(count);
  }
  if (!same_slopes) throw Asymmetric();
  return true;
}

Contents::Layout Contents::layout(const Content& content) const {
  const std::int64_t total = cell_count(runs(content));
  const std::int64_t rows = content.of == 0 ? content.rows : content.of;
  Layout result;
  if (total >= rows) {
    result.cells_per_row = total / rows;
    result.first = content.first * result.cells_per_row;
    result.cells = content.rows * result.cells_per_row;
    return result;
  }
  result.rows_per_cell = rows / total;
  result.phase = content.first % result.rows_per_cell;
  result.first = content.first / result.rows_per_cell;
  result.cells = (content.first + content.rows - 1) / result.rows_per_cell - result.first + 1;
  return result;
}

}  // namespace shiplap::check
