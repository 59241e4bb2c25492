// Starts this program once more, on every rank of an MPI job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// Becomes `mpirun -n RANKS shiplap WORDS..`, with more ranks than cores if need be, and as root if
// this is. Throws MissingPart D306 if there is no mpirun.
[[noreturn]] void become_mpirun(std::int64_t ranks, std::vector<std::string> words, Colour colour);

// The ranks of a job that is started by this process, or becomes it, need not check this plan.
void mark_checked(const plan::Plan& plan);
// Whether who started this rank has checked this very plan.
[[nodiscard]] bool is_marked_checked(const plan::Plan& plan);

// Throws MissingPart D306 unless an MPI launcher started this process; `command` is what it could
// have been: "shiplap dispatch .. --run mpi".
void require_launched(const std::string& flag, const std::string& command);

}  // namespace shiplap::cli
