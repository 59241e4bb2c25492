// The order that a rank's streams and `after` alone impose on its operations, and what they touch
// without such an order.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shiplap/check/script_internal.h"
#include "shiplap/check/trouble_internal.h"

namespace shiplap::check {

// Takes time in proportion to operations, dependencies and streams.
class LocalOrder {
 public:
  explicit LocalOrder(const plan::RankTemplate& steps);

  // Whether an operation is complete whenever a later one starts.
  [[nodiscard]] bool complete_before(std::int32_t earlier, std::int32_t later) const;
  // Whether it has started by then.
  [[nodiscard]] bool started_before(std::int32_t earlier, std::int32_t later) const;

 private:
  [[nodiscard]] std::int32_t owner(std::int32_t op) const {
    return steps_[op].member ? steps_[op].gate : op;
  }
  [[nodiscard]] std::int32_t at(std::int32_t op, std::int32_t stream) const {
    return clocks_[static_cast<std::size_t>(op) * streams_ + static_cast<std::size_t>(stream)];
  }
  void merge(std::size_t into, std::int32_t from);

  const plan::RankTemplate& steps_;
  std::size_t streams_;
  // By operation and stream: how far that stream is for certain when this starts. Its k-th
  // operation has started at 2k+1 and is complete at 2k+2.
  std::vector<std::int32_t> clocks_;
  std::vector<std::int32_t> position_;  // in its stream
  struct Waiter {
    std::int32_t op = 0;      // what is waited for
    std::int32_t stream = 0;  // of who waits
    std::int32_t position = 0;
  };
  std::vector<Waiter> waiters_;             // for what is async, chained
  std::vector<std::int32_t> next_waiter_;   // as waiters_
  std::vector<std::int32_t> first_waiter_;  // by operation, -1: none
};

// Adds what touches the same rows without an order, and keys without one; each pair once. Returns
// how many accesses were looked at.
std::int64_t find_races(const Script& script, std::vector<Trouble>& troubles);

}  // namespace shiplap::check
