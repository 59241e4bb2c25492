// Ranks as processes of an MPI job, on one machine or many. This library links no MPI: a plugin
// built against the MPI in question is loaded when asked for.
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
  // How long MPI may take to start. It waits for all ranks, without a word: after this the process
  // says so (D301) and ends.
  Seconds connect_within{60};
};

// Which library's launcher started this process, told by the variables it set; nothing if none did.
[[nodiscard]] std::optional<MpiLibrary> launched_by();

// Calls `work` with all ranks of the job, of which this process is one, and returns when all of
// them have come to its end. When it throws, the other ranks that wait for this one get RankFailed,
// and the exception goes on to the caller.
//
// May be called again. MPI is started by the first call and ends with the process: if some ranks
// failed, they have a moment to report before the job is ended.
//
// After a failure MPI may still read and write the buffers of the call that failed; leave them
// alone until the process ends.
//
// Throws MissingPart D306 if this process was not started by a launcher or there is no plugin.
void run_on_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& work);

}  // namespace shiplap::comm
