// Where torch puts the messages of a pipeline schedule that has none of its own.
#pragma once

#include <vector>

#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy::torch_schedule {

// The actions of each rank, with messages. Those of the file are kept as they are.
[[nodiscard]] std::vector<std::vector<Action>> with_messages(const Pipeline& pipeline);

}  // namespace shiplap::strategy::torch_schedule
