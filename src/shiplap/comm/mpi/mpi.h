// Ranks as processes of an MPI job, on one host or many. This library does not link MPI: a plugin
// built against the MPI library is loaded at run time.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "shiplap/base/units.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

enum class MpiLibrary { open_mpi, mpich, simulated };
[[nodiscard]] std::string_view name(MpiLibrary library);

struct MpiOptions {
  Seconds timeout{60};
  bool checked = false;
  // Timeout of MPI_Init, which waits for all ranks: the process then prints D301 and exits.
  Seconds connect_timeout{60};
};

// Returns the library whose launcher started this process, according to the environment; nothing if
// there was none.
[[nodiscard]] std::optional<MpiLibrary> launched_by();

// Calls `work` with the world communicator, and returns when all ranks have returned from theirs.
// If `work` throws, the other ranks that wait for this one get RankFailed, and the exception is
// rethrown.
//
// May be called again. The first call starts MPI, which ends with the process: after a failure, all
// ranks have a moment to report before the job is aborted.
//
// After a failure MPI may still access the buffers of the call that failed: do not free or reuse
// them until the process exits.
//
// Throws MissingDependency D306 if this process was not started by a launcher or there is no
// plugin.
void run_on_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
