#include "shiplap/comm/mpi/library_internal.h"

namespace shiplap::comm::library {

bool is_simulated() { return true; }

bool supports_mprobe() { return false; }

// Simulated processes do not die.
std::vector<int> dead_ranks(MPI_Comm) { return {}; }

// SMPI 3.32 has only the blocking call.
int start_duplicate(MPI_Comm communicator, MPI_Comm* copy, MPI_Request* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_Comm_dup(communicator, copy);
}

}  // namespace shiplap::comm::library
