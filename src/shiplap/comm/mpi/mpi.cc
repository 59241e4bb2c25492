#include "shiplap/comm/mpi/mpi.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/plugin.h"
#include "shiplap/comm/mpi/plugin_internal.h"

namespace shiplap::comm {
namespace {

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

[[noreturn]] void throw_missing(std::string what, std::string help) {
  throw MissingDependency(
      Diagnostic{.code = "D306", .what = std::move(what), .help = std::move(help)});
}

const MpiPlugin& load(MpiLibrary library) {
  PluginSymbol found =
      load_plugin(fmt::format("shiplap_{}.so", name(library)), "shiplap_mpi_plugin");
  if (found.address == nullptr) throw_missing(std::move(found.problem), std::move(found.help));
  const auto* plugin = static_cast<const MpiPlugin*>(found.address);
  if (plugin->version != kMpiPluginVersion) {
    throw_missing(fmt::format("`shiplap_{}.so` has another version", name(library)),
                  "rebuild or reinstall it");
  }
  return *plugin;
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
  // A program for a simulated cluster (SMPI) cannot load plugins: the transport is linked in.
  if (&shiplap_mpi_plugin != nullptr) return MpiLibrary::simulated;
  if (is_set("OMPI_COMM_WORLD_SIZE")) return MpiLibrary::open_mpi;
  if (is_set("PMI_RANK") || is_set("PMI_FD")) return MpiLibrary::mpich;
  return std::nullopt;
}

void run_on_mpi(const MpiOptions& options, const std::function<void(Communicator&)>& work) {
  const std::optional<MpiLibrary> library = launched_by();
  if (!library) {
    throw_missing("this process was not started by an MPI launcher",
                  "start it with `mpirun -n 4 ..`, or use ranks as threads");
  }
  if (*library == MpiLibrary::simulated) return shiplap_mpi_plugin.run(options, work);
  load(*library).run(options, work);
}

}  // namespace shiplap::comm
