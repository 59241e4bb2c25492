#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/overlap/problem_internal.h"

namespace shiplap::overlap {
namespace {

void check_within(std::string_view what, std::int64_t number, std::int64_t min, std::int64_t max) {
  if (min <= number && number <= max) return;
  throw InputError(Diagnostic{.code = "D801",
                              .what = fmt::format("{}: {}", what, number),
                              .help = fmt::format("choose {} to {}", min, max)});
}

void check_format(const char* what, const QuantFormat& format) {
  using enum DType;
  if (is_high_precision(format) || format.type == fp8_e4m3 || format.type == fp8_e5m2) return;
  throw InputError(Diagnostic{
      .code = "D801",
      .what = fmt::format("the quantized dtype of {}: {}", what, shiplap::name(format.type)),
      .help = "choose fp8_e4m3 or fp8_e5m2"});
}

void check_formats(const Choice& choice, const Problem& problem) {
  check_format("X", problem.x);
  check_format("W", problem.w);
  check_format("sums", problem.sums);
  const bool has_sums = choice.type == Type::reduce_scatter || choice.type == Type::all_reduce;
  if (has_sums || is_high_precision(problem.sums)) return;
  throw InputError(
      Diagnostic{.code = "D801",
                 .what = fmt::format("quantized partial sums in {}", to_string(choice)),
                 .why = "no partial sums are communicated",
                 .help = "omit the quantization of sums"});
}

}  // namespace

void check_problem(const Choice& choice, const Problem& problem) {
  constexpr std::int64_t kMax = (std::int64_t{1} << 31) - 2;
  check_within("the number of ranks", problem.ranks, 1, 1024);
  check_within("the number of chunks of a rank's rows", problem.chunks, 1, 4096);
  const bool gathers = choice.type == Type::all_gather;  // splits n, otherwise k
  check_within("the rows of X", problem.m, 1, kMax);
  check_within("the columns of W", problem.n, gathers ? problem.ranks : 1, kMax);
  check_within("the columns of X", problem.k, gathers ? 1 : problem.ranks, kMax);
  // The plan has the flop of each tile, in 64 bits.
  const std::int64_t max_k = (std::int64_t{1} << 61) / problem.m / problem.n;
  check_within("the columns of X, for these rows of X and columns of W", problem.k, 0, max_k);
  check_within("the number of groups", problem.groups, 0, 65536);
  check_within("the columns of all W", problem.n, 0, kMax / std::max(1, problem.groups));
  check_formats(choice, problem);
  if (choice.method != Method::bulk) return;
  check_within("the rows of what is scattered", problem.bulk_rows, 0, kMax);
  check_within("the columns of what is scattered", problem.bulk_columns, 0, kMax);
}

Offsets split_offsets(std::int64_t count, std::int64_t parts) {
  Offsets cuts;
  for (std::int64_t k = 0; k <= parts; ++k) {
    cuts.push_back(k * (count / parts) + std::min(k, count % parts));
  }
  return cuts;
}

Offsets rank_offsets(const Choice& choice, const Problem& problem) {
  const bool is_separate = choice.method == Method::bulk && problem.bulk_rows != 0;
  return split_offsets(is_separate ? problem.bulk_rows : problem.m, problem.ranks);
}

Offsets chunk_offsets(const Choice& choice, const Problem& problem) {
  const Offsets cut = rank_offsets(choice, problem);
  Offsets at;
  for (std::size_t p = 0; p + 1 < cut.size(); ++p) {
    const Offsets within = chunk_boundaries(cut[p + 1] - cut[p], choice, problem);
    for (std::size_t k = 0; k + 1 < within.size(); ++k) at.push_back(cut[p] + within[k]);
  }
  at.push_back(cut.back());
  return at;
}

Offsets chunk_boundaries(std::int64_t rows, const Choice& choice, const Problem& problem) {
  const std::int64_t chunks = problem.chunks;
  if (problem.cut == Cut::even) return split_offsets(rows, chunks);
  // Rows of an AMX tile.
  constexpr std::int64_t kTile = 16;
  const std::int64_t all = chunks * (chunks + 1) / 2;
  const std::int64_t unit = 2 * rows >= kTile * all ? kTile : 1;
  Offsets cuts;
  for (std::int64_t k = 0; k <= chunks; ++k) {
    // Rows before chunk k, if the smallest chunk is first.
    const std::int64_t before = rows * (k * (k + 1) / 2) / all;
    cuts.push_back(k == chunks ? rows : (before + unit / 2) / unit * unit);
  }
  if (choice.type != Type::all_gather) return cuts;
  Offsets mirrored;
  for (const std::int64_t cut : cuts) mirrored.insert(mirrored.begin(), rows - cut);
  return mirrored;
}

std::int64_t joined_rows(std::int64_t m) {
  constexpr std::int64_t kRowsPerRead = 128;  // of the weights, see docs/overlap/gemm.md
  return std::min(kRowsPerRead, m / 4);
}

}  // namespace shiplap::overlap
