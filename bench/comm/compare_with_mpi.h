// Times our calls and the corresponding calls of MPI, alternately.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

inline constexpr int kRounds = 75;
inline constexpr std::int64_t kLarge = std::int64_t{16} << 20;
inline constexpr int kLargeRounds = 15;    // above 16 MiB
inline constexpr double kMinBatch = 4e-3;  // seconds; shorter ones are too noisy
inline constexpr double kLongBatch = 0.1;  // seconds; longer ones need fewer rounds
inline constexpr int kLongRounds = 21;

using Call = std::function<void()>;

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

inline double seconds_of(Communicator& world, const Call& call, int repetitions) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int k = 0; k < repetitions; ++k) call();
  double took = MPI_Wtime() - begin;
  world.all_reduce(std::span(&took, 1), ReduceOp::max);
  return took;
}

// Returns the median and quartiles of the ratios of neighbouring batches.
inline Json compare_with_mpi(Communicator& world, std::int64_t bytes, const Call& ours,
                             const Call& bare) {
  int repetitions = 1;
  while (seconds_of(world, bare, repetitions) < kMinBatch) repetitions *= 2;
  const double once = seconds_of(world, ours, repetitions);  // the same on all ranks
  std::vector<double> ratios;
  std::vector<double> bare_seconds;
  const int rounds = bytes > kLarge ? kLargeRounds : once > kLongBatch ? kLongRounds : kRounds;
  for (int round = 0; round < rounds; ++round) {
    const bool ours_first = round % 2 == 0;
    const double first = seconds_of(world, ours_first ? ours : bare, repetitions);
    const double second = seconds_of(world, ours_first ? bare : ours, repetitions);
    ratios.push_back(ours_first ? first / second : second / first);
    bare_seconds.push_back((ours_first ? second : first) / repetitions);
  }
  std::ranges::sort(ratios);
  const std::size_t quarter = ratios.size() / 4;
  return Json::object({{"bytes", bytes},
                       {"bare_us", median(bare_seconds) * 1e6},
                       {"ratio", ratios[ratios.size() / 2]},
                       {"lower_quartile", ratios[quarter]},
                       {"upper_quartile", ratios[ratios.size() - 1 - quarter]}});
}

}  // namespace shiplap::comm
