// The version of Shiplap.
#pragma once

#include <string_view>

namespace shiplap {

// "0.1.0", from the CMakeLists.txt of the project.
[[nodiscard]] std::string_view version();

}  // namespace shiplap
