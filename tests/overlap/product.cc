#include "product.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "shiplap/kernels/bf16.h"

namespace shiplap::tests {

using overlap::Choice;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using plan::ElementType;

namespace {

Table table(std::int64_t rows, std::int64_t columns) {
  return {rows, columns, std::vector<double>(static_cast<std::size_t>(rows * columns))};
}

float rounded(double number, ElementType type) {
  const auto near = static_cast<float>(number);
  return type == ElementType::bf16 ? kernels::to_float(kernels::to_bf16(near)) : near;
}

// As `type` has them.
Table random_table(std::int64_t rows, std::int64_t columns, ElementType type, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> any(-1, 1);
  Table made = table(rows, columns);
  for (double& number : made.numbers) number = rounded(any(random), type);
  return made;
}

void fill(std::span<std::byte> bytes, ElementType type, const Table& from, const Cut& cut) {
  for (std::int64_t i = 0; i < cut.rows; ++i) {
    for (std::int64_t j = 0; j < cut.columns; ++j) {
      put(bytes, type, i * cut.columns + j, from.at(cut.row + i, cut.column + j));
    }
  }
}

double product_of(const Given& given, std::int64_t i, std::int64_t j, std::int64_t begin,
                  std::int64_t end) {
  double sum = 0;
  for (std::int64_t k = begin; k < end; ++k) sum += given.x.at(i, k) * given.w.at(j, k);
  return sum;
}

// How far the best that can be done may be from the truth. Sums in float are off by half a unit in
// the last place for each of their terms; each partial product is rounded once to what travels, and
// the sum of them once more.
double tolerance(const Given& given, const Wanted& want, std::int64_t i, std::int64_t j) {
  const Problem& p = given.problem;
  const bool summed =
      p.ranks > 1 && want.end - want.begin == p.depth && want.cut.columns == p.columns;
  double terms = 0;
  for (std::int64_t k = want.begin; k < want.end; ++k) {
    terms += std::abs(given.x.at(i, k) * given.w.at(j, k));
  }
  const auto count = static_cast<double>(want.end - want.begin + p.ranks);
  double error = terms * count * 0x1p-24;
  if (p.type != ElementType::bf16) return error;
  for (int rank = 0; rank < p.ranks && summed; ++rank) {
    error += 0x1p-8 * std::abs(product_of(given, i, j, begin_of(rank, p.depth, p.ranks),
                                          begin_of(rank + 1, p.depth, p.ranks)));
  }
  return 1.01 * (error + 0x1p-8 * std::abs(product_of(given, i, j, want.begin, want.end)));
}

}  // namespace

std::int64_t begin_of(std::int64_t k, std::int64_t count, std::int64_t parts) {
  return k * (count / parts) + std::min(k, count % parts);
}

void put(std::span<std::byte> bytes, ElementType type, std::int64_t k, double number) {
  const auto near = static_cast<float>(number);
  const kernels::Bf16 half = kernels::to_bf16(near);
  const bool is_half = type == ElementType::bf16;
  std::memcpy(bytes.data() + k * (is_half ? 2 : 4),
              is_half ? static_cast<const void*>(&half) : &near, is_half ? 2 : 4);
}

double get(std::span<const std::byte> bytes, ElementType type, std::int64_t k) {
  if (type == ElementType::bf16) {
    kernels::Bf16 half;
    std::memcpy(&half, bytes.data() + k * 2, 2);
    return kernels::to_float(half);
  }
  float number = 0;
  std::memcpy(&number, bytes.data() + k * 4, 4);
  return number;
}

Given given(const Problem& problem) {
  return {problem, random_table(problem.rows, problem.depth, problem.type, 1),
          random_table(problem.columns, problem.depth, problem.type, 2)};
}

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
  const auto bytes = [&](const Cut& cut) {
    return std::vector<std::byte>(
        static_cast<std::size_t>(cut.rows * cut.columns * plan::bytes_of(p.type)));
  };
  Factors made{.x = bytes(x), .w = bytes(w), .rows = x.rows, .columns = w.rows, .depth = x.columns};
  fill(made.x, p.type, given.x, x);
  fill(made.w, p.type, given.w, w);
  return made;
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
