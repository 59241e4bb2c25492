// One dispatch really carried out, checked and timed: what `shiplap dispatch --run` does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/dispatch/compute.h"

namespace shiplap::run {

struct TrialOptions {
  std::int64_t q_row_bytes = 1024;
  std::int64_t kv_row_bytes = 512;  // even: gradients are bf16
  int steps = 5;
};

// One of the four exchanges.
struct TrialTimes {
  std::string name;  // "Q there"
  Bytes bytes;       // between ranks, of all ranks together
  // Of the slowest rank: the median over the steps, the least and the most.
  Seconds median;
  Seconds least;
  Seconds most;
};

struct TrialResult {
  std::vector<TrialTimes> exchanges;  // Q there, Q back, KV there, KV gradients back
  // Bytes that are not where the tables say, or did not come back as they were.
  std::int64_t wrong_bytes = 0;
  std::int64_t wrong_sums = 0;
};

// All ranks together; each gets the same result. Throws comm::Failure and what Dispatcher throws.
[[nodiscard]] TrialResult try_dispatch(comm::Communicator& communicator,
                                       const dispatch::QkvDispatch& dispatch,
                                       const TrialOptions& options);

}  // namespace shiplap::run
