// Plans that mean nothing and use every word of the format, for tests that must hold for all plans.
#pragma once

#include <cstdint>
#include <string>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// The same for the same seed. It can be written and read; on most ranks it cannot be expanded.
[[nodiscard]] Plan random_plan(std::uint64_t seed);

// Text of a small plan that can be expanded on every rank: loops, conditions, names and `after`.
[[nodiscard]] std::string random_sound_text(std::uint64_t seed);

// Changes one thing that the text shows. Returns false if it found nothing to change.
bool change_something(Plan& plan, std::uint64_t seed);

}  // namespace shiplap::plan
