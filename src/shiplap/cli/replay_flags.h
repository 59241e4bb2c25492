// The flags of `simulate` that say how a machine is shared, and what of it is slow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/cli/flags.h"
#include "shiplap/sim/replay.h"

namespace shiplap::cli {

struct ReplayFlags {
  std::optional<std::string> links;
  std::optional<std::string> queues;
  std::optional<std::string> slow_ranks;
  std::optional<std::string> slow_links;
};

void declare_replay(Flags& flags, ReplayFlags& options);

// Sets them for a plan of so many ranks. Throws InputError with the flag.
void set_replay(const ReplayFlags& flags, std::int64_t ranks, sim::ReplayOptions& options);

}  // namespace shiplap::cli
