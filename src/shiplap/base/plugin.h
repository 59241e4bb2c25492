// Optional shared objects that are loaded on demand. Each is built against one third-party library,
// so that nothing else depends on that library.
#pragma once

#include <string>

namespace shiplap {

struct PluginSymbol {
  const void* address = nullptr;
  std::string problem;  // why it is missing: "there is no `shiplap_mpich.so`"
  std::string help;     // the searched directories, or the message of the system
};

// Searches `file` in $SHIPLAP_PLUGINS, in the directory of this program, in the directory of an
// installation, and in lib/shiplap next to the shared object that contains this code. Never unloads
// a plugin.
[[nodiscard]] PluginSymbol load_plugin(const std::string& file, const char* symbol);

}  // namespace shiplap
