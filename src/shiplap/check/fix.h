// Repairs plans that deadlock, or in which two operations are in the wrong order, with the smallest
// change that makes them sound.
//
//   if (const auto fix = check::fix(plan, report, options)) std::cout << to_text(fix->plan);
#pragma once

#include <optional>
#include <string>

#include "shiplap/check/check.h"
#include "shiplap/plan/plan.h"

namespace shiplap::check {

struct Fix {
  plan::Plan plan;   // sound, by check() with the same options
  std::string what;  // "`r: receive` (line 18) before `s: send` (line 17)"
};

// `report` is the result of check() for `plan`. Tried are deadlocks (D720, D721), calls in another
// order (D708) and messages that cross (D714), up to eight in one plan. None: nothing that was
// tried makes it sound, or it is sound already.
[[nodiscard]] std::optional<Fix> fix(const plan::Plan& plan, const Report& report,
                                     const Options& options);

}  // namespace shiplap::check
