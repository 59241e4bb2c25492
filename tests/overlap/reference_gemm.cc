#include "reference_gemm.h"

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

// Quantization does not change these values, nor their multiples by powers of two.
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

// The same in a format, with `more` bytes at the end of each row.
std::vector<std::byte> to_format(const overlap::QuantFormat& quant, DType type, const Table& from,
                                 const Cut& cut, std::int64_t more, run::ScaleScope scale) {
  const std::int64_t width = overlap::row_bytes(quant, type, cut.columns) + more;
  std::vector<std::byte> bytes(cut.rows * width);
  if (!is_high_precision(quant)) {
    std::vector<std::byte> high_precision(cut.rows * cut.columns * 4);
    fill(high_precision, DType::f32, from, cut);
    run::quantize_rows({.data = high_precision.data(), .rows = cut.rows, .columns = cut.columns},
                       quant, bytes.data(), width, scale);
    return bytes;
  }
  for (std::int64_t i = 0; i < cut.rows; ++i) {
    fill(std::span(bytes).subspan(i * width), type, from,
         {cut.row + i, 1, cut.column, cut.columns});
  }
  return bytes;
}

// Returns the maximum quantization error of a value in a row with this largest value.
double quantization_error(const overlap::QuantFormat& quant, double number, double largest) {
  if (is_high_precision(quant)) return 0;
  const DType format = quant.type == DType::fp8_e5m2 ? DType::fp8_e5m2 : DType::fp8_e4m3;
  // Scales of blocks are rounded up to a power of two.
  const double scale = (quant.scaling == overlap::Scaling::blocks ? 2 : 1) * largest /
                       static_cast<double>(kernels::fp8_max(format));
  return 1.0001 * std::max(kernels::unit_roundoff(format) * std::abs(number),
                           kernels::min_subnormal(format) / 2 * scale);
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
  return given.groups[i] * given.problem.n + j;
}

double product_of(const Given& given, std::int64_t i, std::int64_t j, std::int64_t begin,
                  std::int64_t end) {
  const std::int64_t row = w_row(given, i, j);
  double sum = 0;
  for (std::int64_t k = begin; k < end; ++k) sum += given.x.at(i, k) * given.w.at(row, k);
  return sum;
}

// How far the best that can be done may be from the truth. LocalOperands are rounded to what they
// are written as. Sums in float are off by half a unit in the last place for each of their terms;
// each partial product is rounded once to what travels, and the sum of them once more, or twice
// where it travels again.
double tolerance(const Given& given, const Wanted& want, std::int64_t i, std::int64_t j) {
  const Problem& p = given.problem;
  const bool summed = p.ranks > 1 && want.end - want.begin == p.k && want.cut.columns == p.n;
  const std::int64_t row = w_row(given, i, j);
  const bool is_any = !given.is_exact && !(is_high_precision(p.x) && is_high_precision(p.w));
  const double x_most = is_any ? largest_in(given.x, i) : 0;
  const double w_most = is_any ? std::ranges::max(given.w.largest) : 0;
  double terms = 0;
  double factors = 0;
  for (std::int64_t k = want.begin; k < want.end; ++k) {
    const double x = std::abs(given.x.at(i, k));
    const double w = std::abs(given.w.at(row, k));
    terms += x * w;
    if (!is_any) continue;
    factors +=
        (x + quantization_error(p.x, x, x_most)) * (w + quantization_error(p.w, w, w_most)) - x * w;
  }
  const auto count = static_cast<double>(want.end - want.begin + p.ranks);
  double error = (terms + factors) * count * 0x1p-24 + factors;
  const bool is_summed_coded =
      !is_high_precision(p.sums) && want.end - want.begin == p.k && want.cut.columns == p.n;
  for (std::size_t rank = 0; rank + 1 < given.parts.size() && is_summed_coded; ++rank) {
    const Table& part = given.parts[rank];
    error += quantization_error(p.sums, std::abs(part.at(i, j)) + factors,
                                largest_in(part, i) + factors);
  }
  const double right = std::abs(product_of(given, i, j, want.begin, want.end));
  if (is_summed_coded && want.cut.rows == p.m) {
    const double largest = largest_in(given.parts.back(), i);
    error += quantization_error(p.sums, right + error, largest + error);
  }
  if (p.type != DType::bf16) return error;
  for (int rank = 0; rank < p.ranks && summed; ++rank) {
    error += 0x1p-8 * std::abs(product_of(given, i, j, begin_of(rank, p.k, p.ranks),
                                          begin_of(rank + 1, p.k, p.ranks)));
  }
  return 1.01 * (error + 0x1p-8 * (right + error));
}

// Rows, and parts of rows, of different sizes, so that each has its own scale.
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
  for (std::int64_t i = 0; i < p.m; ++i) {
    const auto count = static_cast<std::mt19937::result_type>(std::max(1, p.groups - 1));
    groups.push_back(static_cast<std::int64_t>(random() % count));
  }
  if (p.groups > 0 && p.m > 2) std::sort(groups.begin() + 2, groups.end());
  return groups;
}

Given made(const Problem& p, bool is_exact) {
  const auto numbers = [&](const overlap::QuantFormat& quant, std::int64_t rows, unsigned seed) {
    Table table = is_exact && !is_high_precision(quant) ? exact_table(rows, p.k, seed)
                                                        : random_table(rows, p.k, p.type, seed);
    if (!is_high_precision(quant)) spread_out(table);
    return table;
  };
  Given made{.problem = p,
             .x = numbers(p.x, p.m, 1),
             .w = numbers(p.w, p.n * std::max(1, p.groups), 2),
             .is_exact = is_exact};
  made.groups = random_groups(p, 3);
  find_largest(made.x);
  find_largest(made.w);
  const auto product = [&](std::int64_t begin, std::int64_t end) {
    Table part = table(p.m, p.n);
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) part.at(i, j) = product_of(made, i, j, begin, end);
    }
    find_largest(part);
    return part;
  };
  if (is_high_precision(p.sums)) return made;
  for (int rank = 0; rank < p.ranks; ++rank) {
    made.parts.push_back(product(begin_of(rank, p.k, p.ranks), begin_of(rank + 1, p.k, p.ranks)));
  }
  made.parts.push_back(product(0, p.k));
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

LocalOperands local_operands(Type type, const Given& given, int rank) {
  const Problem& p = given.problem;
  const auto begin = [&](std::int64_t count) { return begin_of(rank, count, p.ranks); };
  const auto share = [&](std::int64_t count) {
    return begin_of(rank + 1, count, p.ranks) - begin_of(rank, count, p.ranks);
  };
  const bool gathers = type == Type::all_gather;
  const Cut x = gathers ? Cut{begin(p.m), share(p.m), 0, p.k} : Cut{0, p.m, begin(p.k), share(p.k)};
  const Cut w = gathers ? Cut{begin(p.n), share(p.n), 0, p.k} : Cut{0, p.n, begin(p.k), share(p.k)};
  LocalOperands made{.m = x.rows, .n = w.rows, .k = x.columns};
  const std::int64_t more = gathers && p.groups > 0 ? overlap::kGroupBytes : 0;
  made.x = to_format(p.x, p.type, given.x, x, more, run::ScaleScope::per_row);
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
    some.row += group * p.n;
    const std::vector<std::byte> rows =
        to_format(p.w, p.type, given.w, some, 0, run::ScaleScope::per_tensor);
    made.w.insert(made.w.end(), rows.begin(), rows.end());
  }
  return made;
}

run::GemmArgs args_of(const LocalOperands& factors, Type type) {
  return {.runs = type == Type::all_gather ? std::span<const kernels::GroupRows>() : factors.runs};
}

void fill_rank(run::OverlappedGemm& gemm, Type type, const Given& given, int rank) {
  const Problem& p = given.problem;
  const LocalOperands local = local_operands(type, given, rank);
  const std::span<std::byte> x = gemm.buffer("x");
  const std::size_t row_bytes = x.size() / static_cast<std::size_t>(p.m);
  const std::int64_t row = type == Type::all_gather ? begin_of(rank, p.m, p.ranks) : 0;
  std::ranges::copy(local.x, x.begin() + row * static_cast<std::int64_t>(row_bytes));
  std::ranges::copy(local.w, gemm.buffer("w").begin());
}

Wanted wanted(const Choice& choice, const Problem& p, int rank) {
  const auto begin = [&](std::int64_t k, std::int64_t count) {
    return begin_of(k, count, p.ranks);
  };
  Wanted wanted{.cut = {0, p.m, 0, p.n}, .end = p.k};
  if (choice.type == Type::all_gather) {
    wanted.cut.column = begin(rank, p.n);
    wanted.cut.columns = begin(rank + 1, p.n) - wanted.cut.column;
  } else if (choice.type == Type::none || choice.method == Method::bulk) {
    wanted.begin = begin(rank, p.k);
    wanted.end = begin(rank + 1, p.k);
  } else if (choice.type == Type::all_reduce && !is_high_precision(p.sums)) {
    wanted.buffer = "out";
  } else if (choice.type == Type::reduce_scatter) {
    wanted.buffer = "out";
    wanted.cut.row = begin(rank, p.m);
    wanted.cut.rows = begin(rank + 1, p.m) - wanted.cut.row;
  }
  return wanted;
}

ExpectedValue expected_value(const Given& given, const Wanted& want, std::int64_t row,
                             std::int64_t column) {
  return {product_of(given, row, column, want.begin, want.end),
          tolerance(given, want, row, column)};
}

std::string find_mismatch(const run::OverlappedGemm& gemm, const Choice& choice, const Given& given,
                          int rank) {
  return find_mismatch(gemm.buffer(wanted(choice, given.problem, rank).buffer), choice, given,
                       rank);
}

std::string find_mismatch(std::span<const std::byte> bytes, const Choice& choice,
                          const Given& given, int rank) {
  const Wanted want = wanted(choice, given.problem, rank);
  for (std::int64_t i = 0; i < want.cut.rows; ++i) {
    for (std::int64_t j = 0; j < want.cut.columns; ++j) {
      const std::int64_t row = want.cut.row + i;
      const std::int64_t column = want.cut.column + j;
      const auto [right, most] = expected_value(given, want, row, column);
      const double found = get(bytes, given.problem.type, i * want.cut.columns + j);
      if (std::abs(found - right) <= most) continue;
      return fmt::format("row {}, column {}: {} where {} is right, within {:.2g}", row, column,
                         found, right, most);
    }
  }
  return "";
}

}  // namespace shiplap::tests
