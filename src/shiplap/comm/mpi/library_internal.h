// Differences between MPI libraries: one source file for each, of which one is linked.
#pragma once

#include <mpi.h>

#include <vector>

namespace shiplap::comm::library {

// SMPI: all ranks are threads of a simulator. No rank may exit the process or start threads, and
// time is simulated.
[[nodiscard]] bool is_simulated();
// Whether MPI_Improbe works.
[[nodiscard]] bool supports_mprobe();
// Returns the ranks whose processes have died; none if the library does not report them. Afterwards
// MPI_ANY_SOURCE can be used again.
[[nodiscard]] std::vector<int> dead_ranks(MPI_Comm communicator);

// MPI_Comm_idup. Returns the status of MPI.
[[nodiscard]] int start_duplicate(MPI_Comm communicator, MPI_Comm* copy, MPI_Request* request);

}  // namespace shiplap::comm::library
