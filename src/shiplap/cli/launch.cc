#include "shiplap/cli/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/run/job_consistency.h"

namespace shiplap::cli {
namespace {

constexpr const char* kCheckedPlan = "SHIPLAP_CHECKED_PLAN";

}  // namespace

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
