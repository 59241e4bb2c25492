// What differs between MPI libraries: each has a file of its own, of which one is linked.
#pragma once

#include <mpi.h>

#include <vector>

namespace shiplap::comm::library {

// All ranks are threads of a simulator: nothing may end the process or run beside it, and time is
// simulated.
[[nodiscard]] bool is_simulated();
// Whether a message can be looked at before it is received.
[[nodiscard]] bool can_look_first();
// The ranks whose processes are known to have died; none where the library cannot tell. Afterwards
// messages from anybody can be received again.
[[nodiscard]] std::vector<int> dead_ranks(MPI_Comm communicator);

// Begins to make a copy of a communicator, complete with `request`. Returns MPI's status.
[[nodiscard]] int start_duplicate(MPI_Comm communicator, MPI_Comm* copy, MPI_Request* request);

}  // namespace shiplap::comm::library
