// Starts this program once more, on every rank of an MPI job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::cli {

// Becomes `mpirun -n RANKS shiplap WORDS..`, with more ranks than cores if need be, and as root if
// this is. Throws MissingPart D306 if there is no mpirun.
[[noreturn]] void become_mpirun(std::int64_t ranks, std::vector<std::string> words, Colour colour);

// Throws MissingPart D306 unless an MPI launcher started this process; `command` is what it could
// have been: "shiplap dispatch .. --run mpi".
void require_launched(const std::string& flag, const std::string& command);

}  // namespace shiplap::cli
