// Short labels of events.
#pragma once

#include <string>
#include <string_view>

#include "shiplap/trace/event.h"

namespace shiplap::trace {

// "forward L3 s0-1", "send L2 s4 to 3", "all_gather L7".
[[nodiscard]] std::string label(const Event& event);

// "4", "0-7", "1, 9, .. 57": as to_string, but a pair of neighbours is "0-1".
[[nodiscard]] std::string short_text(const IndexSet& samples);

// "compute", "communication", "update", "load".
[[nodiscard]] std::string_view category(EventKind kind);

}  // namespace shiplap::trace
