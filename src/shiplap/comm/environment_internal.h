// Environment variables that were renamed.
#pragma once

#include <cstdlib>

namespace shiplap::comm {

// Returns `old_name` if only that is set, otherwise `name`.
inline const char* set_variable(const char* name, const char* old_name) {
  return std::getenv(name) == nullptr && std::getenv(old_name) != nullptr ? old_name : name;
}

}  // namespace shiplap::comm
