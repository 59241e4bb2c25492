#include "shiplap/comm/mpi/mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/plugin_internal.h"

namespace shiplap::comm {
namespace {

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

[[noreturn]] void missing(std::string what, std::string help) {
  throw MissingPart(Diagnostic{.code = "D306", .what = std::move(what), .help = std::move(help)});
}

// Where plugins may lie: where the user says, beside this program, where an installation puts them.
std::vector<std::filesystem::path> plugin_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* own = std::getenv("SHIPLAP_PLUGINS")) folders.emplace_back(own);
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  folders.push_back(program);
  folders.push_back(program.parent_path() / "lib" / "shiplap");
  return folders;
}

const MpiPlugin& load(MpiLibrary library) {
  const std::string file = fmt::format("shiplap_{}.so", name(library));
  std::vector<std::string> tried;
  for (const std::filesystem::path& folder : plugin_folders()) {
    const std::filesystem::path path = folder / file;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      tried.push_back(folder.string());
      continue;
    }
    // Never closed: MPI libraries do not survive that.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) missing(fmt::format("`{}` cannot be loaded", path.string()), dlerror());
    const auto* plugin = static_cast<const MpiPlugin*>(dlsym(handle, "shiplap_mpi_plugin"));
    if (plugin == nullptr || plugin->version != kMpiPluginVersion) {
      missing(fmt::format("`{}` is of another version", path.string()), "build or install it anew");
    }
    return *plugin;
  }
  missing(
      fmt::format("there is no `{}`", file),
      fmt::format("looked in {}; SHIPLAP_PLUGINS can name another folder", fmt::join(tried, ", ")));
}

}  // namespace

std::string_view name(MpiLibrary library) {
  switch (library) {
    case MpiLibrary::open_mpi:
      return "openmpi";
    case MpiLibrary::mpich:
      return "mpich";
    case MpiLibrary::simulated:
      return "simulated";
  }
  throw InternalError("unknown MPI library");
}

std::optional<MpiLibrary> launched_by() {
  // A program for a simulated cluster cannot load plugins: it has the transport linked in.
  if (&shiplap_mpi_plugin != nullptr) return MpiLibrary::simulated;
  if (is_set("OMPI_COMM_WORLD_SIZE")) return MpiLibrary::open_mpi;
  if (is_set("PMI_RANK") || is_set("PMI_FD")) return MpiLibrary::mpich;
  return std::nullopt;
}

void run_on_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& work) {
  const std::optional<MpiLibrary> library = launched_by();
  if (!library) {
    missing("this process was not started by an MPI launcher",
            "start it with `mpirun -n 4 ..`, or use ranks as threads");
  }
  if (*library == MpiLibrary::simulated) return shiplap_mpi_plugin.run(options, work);
  load(*library).run(options, work);
}

}  // namespace shiplap::comm
