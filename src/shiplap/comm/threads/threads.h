// Ranks as threads of this process: no MPI, no processes, the default of everything that runs.
#pragma once

#include <functional>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

struct ThreadOptions {
  int ranks = 1;
  Seconds timeout{60};
  bool checked = false;
  // Messages up to this size are copied when they are sent, so that the send is complete at once; a
  // longer one waits for its receive.
  Bytes eager_limit{16'384};
};

// Calls `work` once for each rank, on a thread of its own, and returns when all have returned. When
// one throws, the others that wait for it get RankFailed with its number, and the first exception
// that was thrown is thrown here.
void run_on_threads(const ThreadOptions& options, const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
