// Runs a dispatch, verifies and times it: `shiplap dispatch --run`.
#pragma once

#include <cstdint>

#include "shiplap/comm/communicator.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/summary.h"

namespace shiplap::run {

struct DispatchBenchmarkOptions {
  std::int64_t q_row_bytes = 1024;
  std::int64_t kv_row_bytes = 512;  // even: gradients are bf16
  int steps = 5;
};

// Collective; all ranks get the same result. Throws comm::Failure and whatever Dispatcher throws.
[[nodiscard]] dispatch::BenchmarkResult benchmark_dispatch(comm::Communicator& communicator,
                                                           const dispatch::QkvDispatch& dispatch,
                                                           const DispatchBenchmarkOptions& options);

}  // namespace shiplap::run
