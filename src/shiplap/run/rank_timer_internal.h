// Times functions that all ranks call together.
#pragma once

#include <functional>
#include <vector>

#include "shiplap/comm/communicator.h"

namespace shiplap::run {

struct TimingOptions {
  int times = 1;                 // repetitions; the time per repetition is returned
  std::function<void()> before;  // not measured
  bool uses_min = false;         // instead of the median
};

[[nodiscard]] double median(std::vector<double> all);

// Every time is that of the slowest rank: a barrier before, an all-reduce after.
class RankTimer {
 public:
  // REQUIRES: `world` outlives this. A measurement takes about `budget` seconds.
  RankTimer(comm::Communicator& world, double budget) : world_(world), budget_(budget) {}

  // Returns the time of one run, on all ranks.
  double timed(const std::function<void()>& act, const TimingOptions& timing = {});
  // The median of at least five runs after a first one.
  double measure(const std::function<void()>& act, const TimingOptions& timing = {});

  // Measures two functions alternately, so that changes of clock frequency affect both alike.
  struct Pair {
    double ratio = 0;   // median of first / second
    double second = 0;  // median time of the second
  };
  Pair measure_interleaved(const std::function<void()>& first, const std::function<void()>& second,
                           const TimingOptions& timing);

  // Busy-waits, so that a link accepts a full burst: a core that slept would be slow at first.
  static void idle();

 private:
  comm::Communicator& world_;
  double budget_;     // seconds per measurement
  double spent_ = 0;  // in total
};

}  // namespace shiplap::run
