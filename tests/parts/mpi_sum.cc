// Every rank contributes the powers of two that are its own; only if each contribution arrived
// exactly once is the sum what it must be. The argument is how many ranks there should be.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kCount = 1024;

bool sum_is_right(int ranks, int rank) {
  const std::vector<int> mine(kCount, 1 << rank);
  std::vector<int> sum(kCount, 0);
  MPI_Allreduce(mine.data(), sum.data(), kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return std::all_of(sum.begin(), sum.end(),
                     [ranks](int value) { return value == (1 << ranks) - 1; });
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int ranks = 0;
  int rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const long expected = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 0;
  const bool good = ranks == expected && sum_is_right(ranks, rank);
  std::printf("rank %d of %d: %s\n", rank, ranks, good ? "right" : "wrong");
  MPI_Finalize();
  return good ? 0 : 1;
}
