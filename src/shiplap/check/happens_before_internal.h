// The happens-before relation of one rank's operations, by its streams and `after`, and the races:
// accesses to the same rows that it leaves unordered.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shiplap/check/script_internal.h"
#include "shiplap/check/violation_internal.h"

namespace shiplap::check {

// Vector clocks; happens_before.cc explains them. Takes O((operations + dependencies) * streams).
class HappensBefore {
 public:
  explicit HappensBefore(const plan::RankTemplate& steps);

  // Whether `earlier` is complete before `later` starts, in every execution.
  [[nodiscard]] bool complete_before(std::int32_t earlier, std::int32_t later) const;
  // Whether `earlier` has started before `later` starts, in every execution.
  [[nodiscard]] bool started_before(std::int32_t earlier, std::int32_t later) const;

 private:
  [[nodiscard]] std::int32_t owning_step(std::int32_t op) const {
    return steps_[op].member ? steps_[op].predecessor : op;
  }
  [[nodiscard]] std::int32_t clock_of(std::int32_t op, std::int32_t stream) const {
    return clocks_[static_cast<std::size_t>(op) * streams_ + static_cast<std::size_t>(stream)];
  }
  void join_clock(std::size_t into, std::int32_t from);

  const plan::RankTemplate& steps_;
  std::size_t streams_;
  // By operation and stream: the least progress of that stream when the operation starts. The k-th
  // operation of a stream has started at 2k+1 and is complete at 2k+2.
  std::vector<std::int32_t> clocks_;
  std::vector<std::int32_t> position_;  // in its stream
  struct Waiter {
    std::int32_t op = 0;      // the awaited operation
    std::int32_t stream = 0;  // of the waiting operation
    std::int32_t position = 0;
  };
  std::vector<Waiter> waiters_;             // for async operations, linked lists
  std::vector<std::int32_t> next_waiter_;   // as waiters_
  std::vector<std::int32_t> first_waiter_;  // by operation, -1: none
};

// Appends unordered accesses to the same rows, and unordered operations with one key, each pair
// once. Returns the number of accesses.
std::int64_t find_races(const Script& script, std::vector<Violation>& violations);

}  // namespace shiplap::check
