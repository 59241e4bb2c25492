// What must hold of every plan that could be read, wherever it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Prints, reads again and compares, in both forms; expands a few ranks; summarizes. Throws
// InternalError if a promise is broken; refusals of expand() and summarize() are fine.
void check_plan(const Plan& plan);

// Reads arbitrary bytes with `read`. A refusal is fine; whatever is accepted is checked.
void check_bytes(const std::uint8_t* data, std::size_t size,
                 Plan (*read)(std::string_view text, std::string_view file));

}  // namespace shiplap::plan
