#include "product.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/fp8.h"

namespace shiplap::tests {

using overlap::Choice;
using overlap::Method;
using overlap::Problem;
using overlap::Type;

namespace {

Table table(std::int64_t rows, std::int64_t columns) {
  return {rows, columns, std::vector<double>(rows * columns)};
}

float rounded(double number, DType type) {
  const auto near = static_cast<float>(number);
  return type == DType::bf16 ? kernels::to_float(kernels::to_bf16(near)) : near;
}

// As `type` has them.
Table random_table(std::int64_t rows, std::int64_t columns, DType type, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> any(-1, 1);
  Table made = table(rows, columns);
  for (double& number : made.numbers) number = rounded(any(random), type);
  return made;
}

// No scale changes these, nor their products by powers of two.
Table exact_table(std::int64_t rows, std::int64_t columns, unsigned seed) {
  constexpr std::array kNumbers{0.0, 7.0, -7.0, 3.5, -3.5, 1.75, -1.75, 0.875};
  std::mt19937 random(seed);
  Table made = table(rows, columns);
  for (double& number : made.numbers) number = kNumbers[random() % kNumbers.size()];
  return made;
}

void fill(std::span<std::byte> bytes, DType type, const Table& from, const Cut& cut) {
  for (std::int64_t i = 0; i < cut.rows; ++i) {
    for (std::int64_t j = 0; j < cut.columns; ++j) {
      put(bytes, type, i * cut.columns + j, from.at(cut.row + i, cut.column + j));
    }
  }
}

// The same in a form, with `more` bytes behind each row.
std::vector<std::byte> formed(const overlap::Form& form, DType type, const Table& from,
                              const Cut& cut, std::int64_t more, run::ScaleOf scale) {
  const std::int64_t width = overlap::row_bytes(form, type, cut.columns) + more;
  std::vector<std::byte> bytes(cut.rows * width);
  if (!is_plain(form)) {
    std::vector<std::byte> wide(cut.rows * cut.columns * 4);
    fill(wide, DType::f32, from, cut);
    run::encode({.data = wide.data(), .rows = cut.rows, .columns = cut.columns}, form, bytes.data(),
                width, scale);
    return bytes;
  }
  for (std::int64_t i = 0; i < cut.rows; ++i) {
    fill(std::span(bytes).subspan(i * width), type, from,
         {cut.row + i, 1, cut.column, cut.columns});
  }
  return bytes;
}

// How far a number may be from what becomes of it in a form, among others of which the largest is
// so large.
double form_error(const overlap::Form& form, double number, double largest) {
  if (is_plain(form)) return 0;
  const DType format = form.type == DType::fp8_e5m2 ? DType::fp8_e5m2 : DType::fp8_e4m3;
  // Scales of blocks are rounded up to a power of two.
  const double scale = (form.scaling == overlap::Scaling::blocks ? 2 : 1) * largest /
                       static_cast<double>(kernels::largest(format));
  return 1.0001 * std::max(kernels::relative_step(format) * std::abs(number),
                           kernels::smallest_step(format) / 2 * scale);
}

void find_largest(Table& table) {
  table.largest.clear();
  for (std::int64_t i = 0; i < table.rows; ++i) {
    double largest = 0;
    for (std::int64_t j = 0; j < table.columns; ++j) {
      largest = std::max(largest, std::abs(table.at(i, j)));
    }
    table.largest.push_back(largest);
  }
}

// That of a block is not larger.
double largest_in(const Table& table, std::int64_t row) { return table.largest[row]; }

// The row of w that column j of row i is multiplied by.
std::int64_t w_row(const Given& given, std::int64_t i, std::int64_t j) {
  return given.groups[i] * given.problem.columns + j;
}

double product_of(const Given& given, std::int64_t i, std::int64_t j, std::int64_t begin,
                  std::int64_t end) {
  const std::int64_t row = w_row(given, i, j);
  double sum = 0;
  for (std::int64_t k = begin; k < end; ++k) sum += given.x.at(i, k) * given.w.at(row, k);
  return sum;
}

// How far the best that can be done may be from the truth. Factors are rounded to what they are
// written as. Sums in float are off by half a unit in the last place for each of their terms; each
// partial product is rounded once to what travels, and the sum of them once more, or twice where it
// travels again.
double tolerance(const Given& given, const Wanted& want, std::int64_t i, std::int64_t j) {
  const Problem& p = given.problem;
  const bool summed =
      p.ranks > 1 && want.end - want.begin == p.depth && want.cut.columns == p.columns;
  const std::int64_t row = w_row(given, i, j);
  const bool is_any = !given.is_exact && !(is_plain(p.x) && is_plain(p.w));
  const double x_most = is_any ? largest_in(given.x, i) : 0;
  const double w_most = is_any ? std::ranges::max(given.w.largest) : 0;
  double terms = 0;
  double factors = 0;
  for (std::int64_t k = want.begin; k < want.end; ++k) {
    const double x = std::abs(given.x.at(i, k));
    const double w = std::abs(given.w.at(row, k));
    terms += x * w;
    if (!is_any) continue;
    factors += (x + form_error(p.x, x, x_most)) * (w + form_error(p.w, w, w_most)) - x * w;
  }
  const auto count = static_cast<double>(want.end - want.begin + p.ranks);
  double error = (terms + factors) * count * 0x1p-24 + factors;
  const bool is_summed_coded =
      !is_plain(p.sums) && want.end - want.begin == p.depth && want.cut.columns == p.columns;
  for (std::size_t rank = 0; rank + 1 < given.parts.size() && is_summed_coded; ++rank) {
    const Table& part = given.parts[rank];
    error += form_error(p.sums, std::abs(part.at(i, j)) + factors, largest_in(part, i) + factors);
  }
  const double right = std::abs(product_of(given, i, j, want.begin, want.end));
  if (is_summed_coded && want.cut.rows == p.rows) {
    const double largest = largest_in(given.parts.back(), i);
    error += form_error(p.sums, right + error, largest + error);
  }
  if (p.type != DType::bf16) return error;
  for (int rank = 0; rank < p.ranks && summed; ++rank) {
    error += 0x1p-8 * std::abs(product_of(given, i, j, begin_of(rank, p.depth, p.ranks),
                                          begin_of(rank + 1, p.depth, p.ranks)));
  }
  return 1.01 * (error + 0x1p-8 * (right + error));
}

// Rows, and parts of rows, of different sizes, so that each has a scale of its own.
void spread_out(Table& table) {
  for (std::int64_t i = 0; i < table.rows; ++i) {
    for (std::int64_t j = 0; j < table.columns; ++j) {
      table.at(i, j) *= std::ldexp(1.0, static_cast<int>(i % 7 - 3 + j / 16 % 3));
    }
  }
}

// Sorted but for the first two rows; the last group has none.
std::vector<std::int64_t> random_groups(const Problem& p, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> groups;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const auto count = static_cast<std::mt19937::result_type>(std::max(1, p.groups - 1));
    groups.push_back(static_cast<std::int64_t>(random() % count));
  }
  if (p.groups > 0 && p.rows > 2) std::sort(groups.begin() + 2, groups.end());
  return groups;
}

Given made(const Problem& p, bool is_exact) {
  const auto numbers = [&](const overlap::Form& form, std::int64_t rows, unsigned seed) {
    Table table = is_exact && !is_plain(form) ? exact_table(rows, p.depth, seed)
                                              : random_table(rows, p.depth, p.type, seed);
    if (!is_plain(form)) spread_out(table);
    return table;
  };
  Given made{.problem = p,
             .x = numbers(p.x, p.rows, 1),
             .w = numbers(p.w, p.columns * std::max(1, p.groups), 2),
             .is_exact = is_exact};
  made.groups = random_groups(p, 3);
  find_largest(made.x);
  find_largest(made.w);
  const auto product = [&](std::int64_t begin, std::int64_t end) {
    Table part = table(p.rows, p.columns);
    for (std::int64_t i = 0; i < p.rows; ++i) {
      for (std::int64_t j = 0; j < p.columns; ++j)
        part.at(i, j) = product_of(made, i, j, begin, end);
    }
    find_largest(part);
    return part;
  };
  if (is_plain(p.sums)) return made;
  for (int rank = 0; rank < p.ranks; ++rank) {
    made.parts.push_back(
        product(begin_of(rank, p.depth, p.ranks), begin_of(rank + 1, p.depth, p.ranks)));
  }
  made.parts.push_back(product(0, p.depth));
  return made;
}

}  // namespace

std::int64_t begin_of(std::int64_t k, std::int64_t count, std::int64_t parts) {
  return k * (count / parts) + std::min(k, count % parts);
}

void put(std::span<std::byte> bytes, DType type, std::int64_t k, double number) {
  const auto near = static_cast<float>(number);
  const kernels::Bf16 half = kernels::to_bf16(near);
  const bool is_half = type == DType::bf16;
  std::memcpy(bytes.data() + k * (is_half ? 2 : 4),
              is_half ? static_cast<const void*>(&half) : &near, is_half ? 2 : 4);
}

double get(std::span<const std::byte> bytes, DType type, std::int64_t k) {
  if (type == DType::bf16) {
    kernels::Bf16 half;
    std::memcpy(&half, bytes.data() + k * 2, 2);
    return kernels::to_float(half);
  }
  float number = 0;
  std::memcpy(&number, bytes.data() + k * 4, 4);
  return number;
}

Given given(const Problem& problem) { return made(problem, true); }
Given given_any(const Problem& problem) { return made(problem, false); }

Factors factors_of(Type type, const Given& given, int rank) {
  const Problem& p = given.problem;
  const auto begin = [&](std::int64_t count) { return begin_of(rank, count, p.ranks); };
  const auto share = [&](std::int64_t count) {
    return begin_of(rank + 1, count, p.ranks) - begin_of(rank, count, p.ranks);
  };
  const bool gathers = type == Type::all_gather;
  const Cut x = gathers ? Cut{begin(p.rows), share(p.rows), 0, p.depth}
                        : Cut{0, p.rows, begin(p.depth), share(p.depth)};
  const Cut w = gathers ? Cut{begin(p.columns), share(p.columns), 0, p.depth}
                        : Cut{0, p.columns, begin(p.depth), share(p.depth)};
  Factors made{.rows = x.rows, .columns = w.rows, .depth = x.columns};
  const std::int64_t more = gathers && p.groups > 0 ? overlap::kGroupBytes : 0;
  made.x = formed(p.x, p.type, given.x, x, more, run::ScaleOf::each_row);
  const std::size_t width =
      made.x.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, x.rows));
  for (std::int64_t i = 0; i < x.rows && p.groups > 0; ++i) {
    const auto group = static_cast<std::int32_t>(given.groups[x.row + i]);
    if (made.runs.empty() || made.runs.back().group != group) made.runs.push_back({.group = group});
    ++made.runs.back().rows;
    if (more > 0)
      std::memcpy(made.x.data() + static_cast<std::size_t>(i + 1) * width - 4, &group, 4);
  }
  for (int group = 0; group < std::max(1, p.groups); ++group) {
    Cut some = w;
    some.row += group * p.columns;
    const std::vector<std::byte> rows =
        formed(p.w, p.type, given.w, some, 0, run::ScaleOf::all_rows);
    made.w.insert(made.w.end(), rows.begin(), rows.end());
  }
  return made;
}

run::ProductTerms terms_of(const Factors& factors, Type type) {
  return {.runs = type == Type::all_gather ? std::span<const kernels::GroupRows>() : factors.runs};
}

void fill_rank(run::OverlappedProduct& product, Type type, const Given& given, int rank) {
  const Problem& p = given.problem;
  const Factors own = factors_of(type, given, rank);
  const std::span<std::byte> x = product.buffer("x");
  const std::size_t row_bytes = x.size() / static_cast<std::size_t>(p.rows);
  const std::int64_t row = type == Type::all_gather ? begin_of(rank, p.rows, p.ranks) : 0;
  std::ranges::copy(own.x, x.begin() + row * static_cast<std::int64_t>(row_bytes));
  std::ranges::copy(own.w, product.buffer("w").begin());
}

Wanted wanted(const Choice& choice, const Problem& p, int rank) {
  const auto begin = [&](std::int64_t k, std::int64_t count) {
    return begin_of(k, count, p.ranks);
  };
  Wanted wanted{.cut = {0, p.rows, 0, p.columns}, .end = p.depth};
  if (choice.type == Type::all_gather) {
    wanted.cut.column = begin(rank, p.columns);
    wanted.cut.columns = begin(rank + 1, p.columns) - wanted.cut.column;
  } else if (choice.type == Type::none || choice.method == Method::bulk) {
    wanted.begin = begin(rank, p.depth);
    wanted.end = begin(rank + 1, p.depth);
  } else if (choice.type == Type::all_reduce && !is_plain(p.sums)) {
    wanted.buffer = "out";
  } else if (choice.type == Type::reduce_scatter) {
    wanted.buffer = "out";
    wanted.cut.row = begin(rank, p.rows);
    wanted.cut.rows = begin(rank + 1, p.rows) - wanted.cut.row;
  }
  return wanted;
}

Truth truth(const Given& given, const Wanted& want, std::int64_t row, std::int64_t column) {
  return {product_of(given, row, column, want.begin, want.end),
          tolerance(given, want, row, column)};
}

std::string wrong_number(const run::OverlappedProduct& product, const Choice& choice,
                         const Given& given, int rank) {
  return wrong_number(product.buffer(wanted(choice, given.problem, rank).buffer), choice, given,
                      rank);
}

std::string wrong_number(std::span<const std::byte> bytes, const Choice& choice, const Given& given,
                         int rank) {
  const Wanted want = wanted(choice, given.problem, rank);
  for (std::int64_t i = 0; i < want.cut.rows; ++i) {
    for (std::int64_t j = 0; j < want.cut.columns; ++j) {
      const std::int64_t row = want.cut.row + i;
      const std::int64_t column = want.cut.column + j;
      const auto [right, most] = truth(given, want, row, column);
      const double found = get(bytes, given.problem.type, i * want.cut.columns + j);
      if (std::abs(found - right) <= most) continue;
      return fmt::format("row {}, column {}: {} where {} is right, within {:.2g}", row, column,
                         found, right, most);
    }
  }
  return "";
}

}  // namespace shiplap::tests
