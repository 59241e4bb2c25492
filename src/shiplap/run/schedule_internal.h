// Which thread of a rank runs which operation. Each stream is a thread. A group or channel whose
// communication is asynchronous, in a batch, or on several streams has a thread of its own, because
// a communicator may be used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

struct Schedule {
  std::vector<std::vector<std::int32_t>> streams;  // operations in program order; 0 is `main`
  IdVector<plan::flat::GroupId, std::vector<std::int32_t>>
      groups;                                    // of groups that have a thread; else empty
  std::map<std::string, std::int64_t> channels;  // that have a thread -> number of messages
  std::vector<bool> is_posted;  // by operation: to the thread of its group or channel
};

[[nodiscard]] Schedule schedule(const plan::RankProgram& program);

}  // namespace shiplap::run
