// The flags of a pipeline schedule: shared by `check`, `show`, `simulate` and `export`.
#pragma once

#include <optional>
#include <string>

#include "shiplap/cli/flags.h"
#include "shiplap/strategy/import_schedule.h"

namespace shiplap::cli {

struct ScheduleFlags {
  std::optional<std::string> schedule;  // the CSV file
  std::optional<std::string> costs;     // "F=10,B=20"
};

void declare_schedule(Flags& flags, ScheduleFlags& options);

// Those not given follow from the others: I and W from F, B from I and W. Throws InputError D003.
[[nodiscard]] strategy::ActionCosts costs_of(const ScheduleFlags& options);

// "F takes 10.0 ms, B 20.0 ms, I 10.0 ms, W 10.0 ms; activations of 1.00 MiB".
[[nodiscard]] std::string describe_costs(const strategy::ActionCosts& costs);

}  // namespace shiplap::cli
