// Makes the text of a plan smaller (delta debugging on its lines).
#pragma once

#include <functional>
#include <string>

namespace shiplap::oracle {

// Returns a text from which no line can be left out, and no rank, so that `keeps` still holds.
// REQUIRES: keeps(text). The last program of the text is that of the last rank, and the mesh has
// one axis.
[[nodiscard]] std::string shrunk(const std::string& text,
                                 const std::function<bool(const std::string&)>& keeps);

}  // namespace shiplap::oracle
