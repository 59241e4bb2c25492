// Parts that are loaded only where they are wanted and there: shared objects of ours, each built
// against one foreign library, so that nobody else needs that library.
#pragma once

#include <string>

namespace shiplap {

struct PluginSymbol {
  const void* address = nullptr;
  std::string problem;  // why there is none: "there is no `shiplap_mpich.so`"
  std::string help;     // where it was looked for, or what the system says
};

// Looks for `file` where the environment variable SHIPLAP_PLUGINS says, beside this program, where
// an installation puts it, and in lib/shiplap beside the shared object that this code is part of.
// What is loaded stays loaded.
[[nodiscard]] PluginSymbol load_plugin(const std::string& file, const char* symbol);

}  // namespace shiplap
