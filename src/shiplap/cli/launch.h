// On which ranks a command runs; restarts this program on every rank of an MPI job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/cli/flags.h"
#include "shiplap/plan/plan.h"

namespace shiplap::cli {

// --backend: threads, mpi or sockets.
void declare_backend(Flags& flags, std::optional<std::string>& backend);
// Returns the backend of this process: the requested one, or that of the job that it is a rank of.
// Throws InputError D003 if the two differ.
[[nodiscard]] std::string backend_of(const std::optional<std::string>& requested);
// Whether an MPI launcher or SHIPLAP_SOCKETS made this process a rank.
[[nodiscard]] bool is_rank();

// Replaces this process (exec) by `mpirun -n RANKS shiplap WORDS..`, which may oversubscribe the
// cores and may run as root if this process does. Throws MissingDependency D306 if there is no
// mpirun.
[[noreturn]] void exec_mpirun(std::int64_t ranks, std::vector<std::string> words, Colour colour);

// Marks the plan as checked for the ranks that this process starts (in the environment).
void mark_checked(const plan::Plan& plan);
// Whether the process that started this rank has checked this plan.
[[nodiscard]] bool is_marked_checked(const plan::Plan& plan);

// Throws MissingDependency D306 unless an MPI launcher started this process; `command` is the
// command for the message: "shiplap dispatch .. --run mpi".
void check_launched_by_mpi(const std::string& flag, const std::string& command);

}  // namespace shiplap::cli
