// Reports of a machine: its devices and networks as a picture, and where each figure is from.
#pragma once

#include <string>

#include "shiplap/base/json.h"
#include "shiplap/hardware/system.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

// `file` is the parsed hardware file of `system`, for the sources that it states.
[[nodiscard]] std::string hardware_text(const hardware::System& system, const Json& file,
                                        const TextStyle& style);

}  // namespace shiplap::report
