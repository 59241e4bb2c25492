// Whether a simulated step fits into the memory of the device.
#pragma once

#include <optional>

#include "shiplap/base/diagnostic.h"
#include "shiplap/hardware/system.h"
#include "shiplap/trace/summary.h"

namespace shiplap::sim {

// D635 if the peak of a rank exceeds the device memory of the system. None if the system has no
// capacity.
[[nodiscard]] std::optional<Diagnostic> check_memory(const trace::Summary& summary,
                                                     const hardware::System& system);

}  // namespace shiplap::sim
