// An event in a few words, the same wherever it is shown.
#pragma once

#include <string>
#include <string_view>

#include "shiplap/trace/event.h"

namespace shiplap::trace {

// "forward L3 s0-1", "send L2 s4 to 3", "all_gather L7".
[[nodiscard]] std::string label(const Event& event);

// "4", "0-7", "1, 9, .. 57": as to_string, but two neighbours are "0-1", which is shorter.
[[nodiscard]] std::string short_text(const IndexSet& samples);

// "compute", "communication", "update", "load".
[[nodiscard]] std::string_view category(Kind kind);

}  // namespace shiplap::trace
