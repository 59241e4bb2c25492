// Inserts messages into a pipeline schedule that has none, where torch inserts them.
#pragma once

#include <vector>

#include "shiplap/strategy/schedule_rows_internal.h"

namespace shiplap::strategy::torch_schedule {

// Returns the actions of each rank, with messages. Messages of the file are not changed.
[[nodiscard]] std::vector<std::vector<Action>> with_messages(const Pipeline& pipeline);

}  // namespace shiplap::strategy::torch_schedule
