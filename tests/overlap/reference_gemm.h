// Reference GEMM in one process, in double, for tests of overlaps on ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shiplap/comm/ranks.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap::tests {

// A row-major matrix.
struct Table {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> numbers;
  std::vector<double> largest;  // of each row, once they are known
  double& at(std::int64_t i, std::int64_t j) { return numbers[i * columns + j]; }
  [[nodiscard]] double at(std::int64_t i, std::int64_t j) const { return numbers[i * columns + j]; }
};

struct Given {
  overlap::Problem problem;
  Table x;
  Table w;  // transposed: a row for each column of W, of one group after another
  std::vector<std::int64_t> groups;  // of each row of x; all 0 if there are none
  std::vector<Table> parts;          // if sums are coded: what each rank has of Y, and Y itself
  bool is_exact = true;              // no scale changes a factor
};
// Random numbers, as the type has them. Those that have scales are such that no scale of a row or
// of a block changes them: 7 times powers of two.
[[nodiscard]] Given given(const overlap::Problem& problem);
// Any numbers, which FP8 rounds.
[[nodiscard]] Given given_any(const overlap::Problem& problem);

// Where part `k` of `count` things begins, of `parts`.
[[nodiscard]] std::int64_t begin_of(std::int64_t k, std::int64_t count, std::int64_t parts);

// Numbers of f32 or bf16 in memory.
void put(std::span<std::byte> bytes, DType type, std::int64_t k, double number);
[[nodiscard]] double get(std::span<const std::byte> bytes, DType type, std::int64_t k);

// The local shards of X and of W (transposed).
struct LocalOperands {
  std::vector<std::byte> x;
  std::vector<std::byte> w;
  std::int64_t m = 0;                    // rows of x
  std::int64_t n = 0;                    // columns of W
  std::int64_t k = 0;                    // inner size
  std::vector<kernels::GroupRows> runs;  // of the rows of x, if there are groups
};
[[nodiscard]] LocalOperands local_operands(overlap::Type type, const Given& given, int rank);
// Returns the arguments of a run.
[[nodiscard]] run::GemmArgs args_of(const LocalOperands& factors, overlap::Type type);
// Writes the local operands.
void fill_rank(run::OverlappedGemm& gemm, overlap::Type type, const Given& given, int rank);

// Part of a table, by rows.
struct Cut {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
};
// The rows and columns of Y that a rank must have, and their range of K.
struct Wanted {
  const char* buffer = "y";
  Cut cut;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
[[nodiscard]] Wanted wanted(const overlap::Choice& choice, const overlap::Problem& p, int rank);

// An element of the result, and its error bound.
struct ExpectedValue {
  double right = 0;
  double most = 0;
};
[[nodiscard]] ExpectedValue expected_value(const Given& given, const Wanted& want, std::int64_t row,
                                           std::int64_t column);

// Returns a description of the first element that exceeds its error bound; "" if there is none.
[[nodiscard]] std::string find_mismatch(const run::OverlappedGemm& gemm,
                                        const overlap::Choice& choice, const Given& given,
                                        int rank);
[[nodiscard]] std::string find_mismatch(std::span<const std::byte> result,
                                        const overlap::Choice& choice, const Given& given,
                                        int rank);

// Calls `work` on each of `ranks` ranks, as threads.
inline void on_threads(int ranks, const std::function<void(comm::Communicator&)>& work) {
  comm::run_ranks({.threads = ranks, .timeout = {60}}, work);
}

}  // namespace shiplap::tests
