// One dispatch really carried out, checked and timed: what `shiplap dispatch --run` does.
#pragma once

#include <cstdint>

#include "shiplap/comm/communicator.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/summary.h"

namespace shiplap::run {

struct TrialOptions {
  std::int64_t q_row_bytes = 1024;
  std::int64_t kv_row_bytes = 512;  // even: gradients are bf16
  int steps = 5;
};

// All ranks together; each gets the same result. Throws comm::Failure and what Dispatcher throws.
[[nodiscard]] dispatch::Trial try_dispatch(comm::Communicator& communicator,
                                           const dispatch::QkvDispatch& dispatch,
                                           const TrialOptions& options);

}  // namespace shiplap::run
