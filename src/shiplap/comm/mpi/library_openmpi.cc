// clang-format off: mpi-ext.h needs mpi.h before it
#include <mpi.h>
#include <mpi-ext.h>
// clang-format on

#include <numeric>

#include "shiplap/comm/mpi/library_internal.h"

namespace shiplap::comm::library {

bool is_simulated() { return false; }

bool supports_mprobe() { return true; }

std::vector<int> dead_ranks(MPI_Comm communicator) {
  MPI_Group dead = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(communicator, &dead) != MPI_SUCCESS) return {};
  int count = 0;
  MPI_Group_size(dead, &count);
  std::vector<int> ranks(count);
  if (count > 0) {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm_group(communicator, &all);
    std::vector<int> positions(ranks.size());
    std::iota(positions.begin(), positions.end(), 0);
    MPI_Group_translate_ranks(dead, count, positions.data(), all, ranks.data());
    MPI_Group_free(&all);
    MPIX_Comm_failure_ack(communicator);
  }
  MPI_Group_free(&dead);
  return ranks;
}

int start_duplicate(MPI_Comm communicator, MPI_Comm* copy, MPI_Request* request) {
  return MPI_Comm_idup(communicator, copy, request);
}

}  // namespace shiplap::comm::library
