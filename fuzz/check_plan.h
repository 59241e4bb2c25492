// Invariants of every plan that can be parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Prints, reads again and compares, in both forms; expands a few ranks; summarizes. Throws
// InternalError if an invariant is violated; InputErrors of expand() and summarize() are allowed.
void check_plan(const Plan& plan);

// Parses arbitrary bytes with `read`. An InputError is allowed; an accepted plan is checked.
void check_bytes(const std::uint8_t* data, std::size_t size,
                 Plan (*read)(std::string_view text, std::string_view file));

}  // namespace shiplap::plan
