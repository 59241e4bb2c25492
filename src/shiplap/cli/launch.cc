#include "shiplap/cli/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/sockets/sockets.h"
#include "shiplap/run/job_consistency.h"

namespace shiplap::cli {
namespace {

constexpr const char* kCheckedPlan = "SHIPLAP_CHECKED_PLAN";

}  // namespace

void declare_backend(Flags& flags, std::optional<std::string>& backend) {
  flags.text({.name = "--backend",
              .value = "WHERE",
              .help = "threads; mpi, which starts mpirun unless this process is a rank already; "
                      "or sockets, for the processes of SHIPLAP_SOCKETS (threads)",
              .example = "mpi",
              .choices = {"threads", "mpi", "sockets"}},
             backend);
}

std::string backend_of(const std::optional<std::string>& requested) {
  const bool on_sockets = comm::socket_job().has_value();
  const bool on_mpi = !on_sockets && comm::launched_by();
  const std::string here = on_sockets ? "sockets" : on_mpi ? "mpi" : "threads";
  const std::string backend = requested.value_or(on_sockets ? "sockets" : "threads");
  if (backend == here || (backend == "mpi" && here == "threads")) return backend;
  if (backend == "sockets") {
    throw_flag_error(
        "--backend", "SHIPLAP_SOCKETS does not set a rendezvous address",
        "set SHIPLAP_SOCKETS=HOST:PORT, SHIPLAP_RANK and SHIPLAP_WORLD_SIZE in every process");
  }
  throw_flag_error(
      "--backend",
      fmt::format("this process is a rank of a job on {}", here == "mpi" ? "MPI" : here),
      fmt::format("use --backend {}", here));
}

bool is_rank() { return comm::launched_by() || comm::socket_job(); }

void mark_checked(const plan::Plan& plan) {
  setenv(kCheckedPlan, run::fingerprint(plan).c_str(), 1);
}

bool is_marked_checked(const plan::Plan& plan) {
  const char* const checked = std::getenv(kCheckedPlan);
  return checked != nullptr && checked == run::fingerprint(plan);
}

void exec_mpirun(std::int64_t ranks, std::vector<std::string> words, Colour colour) {
  // Open MPI rejects these by default; other MPIs ignore the variables.
  setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
  if (geteuid() == 0) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
      setenv(name, "1", 0);
    }
  }
  // The ranks write to a pipe of the launcher and cannot detect the terminal.
  words.insert(words.end(), {"--color", colour == Colour::on ? "always" : "never"});
  std::vector<std::string> all{"mpirun", "-n", std::to_string(ranks)};
  std::error_code ignored;
  all.push_back(std::filesystem::read_symlink("/proc/self/exe", ignored).string());
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& word : all) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw MissingDependency(
      Diagnostic{.code = "D306",
                 .where = {.flag = "--backend"},
                 .what = fmt::format("cannot start mpirun: {}",
                                     std::error_code(errno, std::generic_category()).message()),
                 .help = "add the `bin` directory of an MPI to PATH, or run on threads"});
}

void check_launched_by_mpi(const std::string& flag, const std::string& command) {
  if (comm::launched_by()) return;
  throw MissingDependency(
      Diagnostic{.code = "D306",
                 .where = {.flag = flag},
                 .what = "this process was not started by an MPI launcher",
                 .help = fmt::format("run `mpirun -n 8 {}`, or use --backend mpi", command)});
}

}  // namespace shiplap::cli
