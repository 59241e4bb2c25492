#include "shiplap/comm/mpi/library_internal.h"

namespace shiplap::comm::library {

bool is_simulated() { return false; }

bool supports_mprobe() { return true; }

// Its launcher kills the job when a process dies.
std::vector<int> dead_ranks(MPI_Comm) { return {}; }

int start_duplicate(MPI_Comm communicator, MPI_Comm* copy, MPI_Request* request) {
  return MPI_Comm_idup(communicator, copy, request);
}

}  // namespace shiplap::comm::library
