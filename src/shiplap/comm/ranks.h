// Runs a function on ranks, however this program was started: as processes if SHIPLAP_SOCKETS is
// set (sockets/sockets.h) or an MPI launcher started it, as threads otherwise.
#pragma once

#include <functional>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

struct RankOptions {
  int threads = 1;  // number of ranks if there is no launcher
  Seconds timeout{60};
  bool checked = false;
  Seconds connect_timeout{60};  // until all ranks are connected, if they are processes
};

// The environment overrides `options`, so that a hang can be debugged without a new build:
// SHIPLAP_TIMEOUT=SECONDS, SHIPLAP_CONNECT_TIMEOUT=SECONDS, SHIPLAP_CHECKED=1 or 0.
void run_ranks(const RankOptions& options, const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
