// What `shiplap overlap --method auto` says of what was chosen, and `--calibrate` of what was
// measured.
#pragma once

#include <string>

#include "shiplap/base/json.h"
#include "shiplap/cli/context.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/overlap/choose.h"

namespace shiplap::cli {

// Why, in the first line; then the best candidates, beside one after the other.
[[nodiscard]] std::string show_chosen(const overlap::Chosen& chosen, const Context& context);
// All candidates, the fastest first.
[[nodiscard]] Json chosen_to_json(const overlap::Chosen& chosen);

// A few lines.
[[nodiscard]] std::string show_calibration(const overlap::Calibration& calibration);

}  // namespace shiplap::cli
