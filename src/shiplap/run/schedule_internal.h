// Which thread of a rank does which operation. Each stream is a thread; a group or channel whose
// communication is asynchronous, in a batch, or on several streams has one of its own, because a
// communicator is used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

struct Schedule {
  std::vector<std::vector<std::int32_t>> streams;  // operations, as listed; 0 is `main`
  IdVector<plan::flat::GroupId, std::vector<std::int32_t>>
      groups;                                    // of those that have a lane; else empty
  std::map<std::string, std::int64_t> channels;  // that have a lane, and how many messages
  std::vector<bool> handed;                      // by operation: to the lane of its group, channel
};

[[nodiscard]] Schedule schedule(const plan::RankProgram& program);

}  // namespace shiplap::run
