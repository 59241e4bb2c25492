// Ranks as threads of this process: no MPI, no processes. The default of all programs.
#pragma once

#include <functional>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

struct ThreadOptions {
  int ranks = 1;
  Seconds timeout{60};
  bool checked = false;
  // Messages up to this size are copied by the sender (eager), so that the send completes at once;
  // a longer one waits for its receive (rendezvous).
  Bytes eager_limit{16'384};
};

// Calls `work` once per rank, each on its own thread, and returns when all have returned. If one
// throws, the others that wait for it get RankFailed, and the first exception is rethrown here.
void run_on_threads(const ThreadOptions& options, const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
