#include "shiplap/cli/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/run/same_job.h"

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

void become_mpirun(std::int64_t ranks, std::vector<std::string> words, Colour colour) {
  // What Open MPI refuses unless told otherwise; other MPIs do not look.
  setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
  if (geteuid() == 0) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
      setenv(name, "1", 0);
    }
  }
  // The ranks write into a pipe of the launcher and cannot see who reads it.
  words.insert(words.end(), {"--color", colour == Colour::on ? "always" : "never"});
  std::vector<std::string> all{"mpirun", "-n", std::to_string(ranks)};
  std::error_code ignored;
  all.push_back(std::filesystem::read_symlink("/proc/self/exe", ignored).string());
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& word : all) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw MissingPart(
      Diagnostic{.code = "D306",
                 .where = {.flag = "--backend"},
                 .what = fmt::format("cannot start mpirun: {}",
                                     std::error_code(errno, std::generic_category()).message()),
                 .help = "put the `bin` of an MPI into PATH, or run on threads"});
}

void require_launched(const std::string& flag, const std::string& command) {
  if (comm::launched_by()) return;
  throw MissingPart(
      Diagnostic{.code = "D306",
                 .where = {.flag = flag},
                 .what = "this process was not started by an MPI launcher",
                 .help = fmt::format("`mpirun -n 8 {}`, or let --backend mpi start it", command)});
}

}  // namespace shiplap::cli
