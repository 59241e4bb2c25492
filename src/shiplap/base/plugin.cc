#include "shiplap/base/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

namespace shiplap {
namespace {

// Never the current directory, because plugins are executed. So paths that are not absolute, as
// they occur without /proc, are ignored.
std::vector<std::filesystem::path> plugin_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* own = std::getenv("SHIPLAP_PLUGINS"); own != nullptr && *own != '\0') {
    folders.emplace_back(own);
  }
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  if (program.is_absolute()) {
    folders.push_back(program);
    folders.push_back(program.parent_path() / "lib" / "shiplap");
  }
  // For a process whose program is not ours, such as Python.
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_plugin), &here) != 0) {
    const auto own = std::filesystem::path(here.dli_fname).parent_path();
    if (own.is_absolute() && own != program) folders.push_back(own / "lib" / "shiplap");
  }
  return folders;
}

}  // namespace

PluginSymbol load_plugin(const std::string& file, const char* symbol) {
  std::vector<std::string> tried;
  for (const std::filesystem::path& folder : plugin_folders()) {
    const std::filesystem::path path = folder / file;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      tried.push_back(folder.string());
      continue;
    }
    // Never closed: MPI libraries do not support unloading.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return {.problem = fmt::format("`{}` cannot be loaded", path.string()), .help = dlerror()};
    }
    const void* const address = dlsym(handle, symbol);
    if (address == nullptr) {
      return {.problem = fmt::format("`{}` has a different version", path.string()),
              .help = "rebuild or reinstall it"};
    }
    return {.address = address};
  }
  return {.problem = fmt::format("there is no `{}`", file),
          .help = fmt::format("searched {}; SHIPLAP_PLUGINS can name another directory",
                              fmt::join(tried, ", "))};
}

}  // namespace shiplap
