#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/overlap/problem_internal.h"

namespace shiplap::overlap {
namespace {

void check_within(std::string_view what, std::int64_t number, std::int64_t least,
                  std::int64_t most) {
  if (least <= number && number <= most) return;
  throw InputError(Diagnostic{.code = "D801",
                              .what = fmt::format("{}: {}", what, number),
                              .help = fmt::format("choose {} to {}", least, most)});
}

void check_form(const char* what, const Form& form) {
  using enum DType;
  if (is_plain(form) || form.type == fp8_e4m3 || form.type == fp8_e5m2) return;
  throw InputError(Diagnostic{
      .code = "D801",
      .what = fmt::format("the codes of {} with scales: {}", what, shiplap::name(form.type)),
      .help = "choose fp8_e4m3 or fp8_e5m2"});
}

void check_forms(const Choice& choice, const Problem& problem) {
  check_form("X", problem.x);
  check_form("W", problem.w);
  check_form("sums", problem.sums);
  const bool has_sums = choice.type == Type::reduce_scatter || choice.type == Type::all_reduce;
  if (has_sums || is_plain(problem.sums)) return;
  throw InputError(Diagnostic{.code = "D801",
                              .what = fmt::format("scaled sums in {}", to_string(choice)),
                              .why = "no parts of sums travel",
                              .help = "leave out the form of sums"});
}

}  // namespace

void check_problem(const Choice& choice, const Problem& problem) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 2;
  check_within("the number of ranks", problem.ranks, 1, 1024);
  check_within("the number of chunks of a rank's rows", problem.chunks, 1, 4096);
  const bool gathers = choice.type == Type::all_gather;  // then columns are cut, else depth
  check_within("the rows of X", problem.rows, 1, kMost);
  check_within("the columns of W", problem.columns, gathers ? problem.ranks : 1, kMost);
  check_within("the columns of X", problem.depth, gathers ? 1 : problem.ranks, kMost);
  // The plan states how many operations each tile takes, in 64 bits.
  const std::int64_t most_depth = (std::int64_t{1} << 61) / problem.rows / problem.columns;
  check_within("the columns of X, with so many rows and columns of W", problem.depth, 0,
               most_depth);
  check_within("the number of groups", problem.groups, 0, 65536);
  check_within("the columns of all W", problem.columns, 0, kMost / std::max(1, problem.groups));
  check_forms(choice, problem);
  if (choice.method != Method::bulk) return;
  check_within("the rows of what is scattered", problem.bulk_rows, 0, kMost);
  check_within("the columns of what is scattered", problem.bulk_columns, 0, kMost);
}

Cuts cuts_of(std::int64_t count, std::int64_t parts) {
  Cuts cuts;
  for (std::int64_t k = 0; k <= parts; ++k) {
    cuts.push_back(k * (count / parts) + std::min(k, count % parts));
  }
  return cuts;
}

Cuts rank_cuts(const Choice& choice, const Problem& problem) {
  const bool beside = choice.method == Method::bulk && problem.bulk_rows != 0;
  return cuts_of(beside ? problem.bulk_rows : problem.rows, problem.ranks);
}

Cuts chunk_cuts(const Choice& choice, const Problem& problem) {
  const Cuts cut = rank_cuts(choice, problem);
  Cuts at;
  for (std::size_t p = 0; p + 1 < cut.size(); ++p) {
    const Cuts within = chunks_of(cut[p + 1] - cut[p], choice, problem);
    for (std::size_t k = 0; k + 1 < within.size(); ++k) at.push_back(cut[p] + within[k]);
  }
  at.push_back(cut.back());
  return at;
}

Cuts chunks_of(std::int64_t rows, const Choice& choice, const Problem& problem) {
  const std::int64_t chunks = problem.chunks;
  if (problem.cut == Cut::even) return cuts_of(rows, chunks);
  // Rows of a tile of the processors that multiply bf16 fastest.
  constexpr std::int64_t kTile = 16;
  const std::int64_t all = chunks * (chunks + 1) / 2;
  const std::int64_t unit = 2 * rows >= kTile * all ? kTile : 1;
  Cuts cuts;
  for (std::int64_t k = 0; k <= chunks; ++k) {
    // Those before chunk k, if it is the smallest that comes first.
    const std::int64_t before = rows * (k * (k + 1) / 2) / all;
    cuts.push_back(k == chunks ? rows : (before + unit / 2) / unit * unit);
  }
  if (choice.type != Type::all_gather) return cuts;
  Cuts mirrored;
  for (const std::int64_t cut : cuts) mirrored.insert(mirrored.begin(), rows - cut);
  return mirrored;
}

}  // namespace shiplap::overlap
