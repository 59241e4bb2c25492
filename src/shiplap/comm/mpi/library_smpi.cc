#include "shiplap/comm/mpi/library_internal.h"

namespace shiplap::comm::library {

bool is_simulated() { return true; }

bool can_look_first() { return false; }

// Simulated processes do not die.
std::vector<int> dead_ranks(MPI_Comm) { return {}; }

}  // namespace shiplap::comm::library
