// The communicators that a plan needs: one for each group of collectives, one for each channel of
// messages. All ranks make them together, in one order.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/plan/expand.h"

namespace shiplap::run {

// Tags up to here go as they are.
inline constexpr std::int64_t kNearTags = (comm::Communicator::kLargestTag + 1) / 2;

struct Links {
  IdVector<plan::flat::GroupId, std::unique_ptr<comm::Communicator>> groups;  // of this rank
  std::map<std::string, std::unique_ptr<comm::Communicator>> channels;
  std::vector<std::unique_ptr<comm::Communicator>> others;  // of groups that only others name
  std::map<std::int64_t, int> far_tags;                     // of the plan, as they go

  [[nodiscard]] int tag(std::int64_t tag) const {
    return tag >= 0 && tag < kNearTags ? static_cast<int>(tag) : far_tags.at(tag);
  }
};

// The channel of a send or receive; "" is `main`.
[[nodiscard]] const std::string* message_channel(const plan::flat::Operation& op);

// All ranks call it, each with its own program and with what is wrong with that. If anything is
// wrong anywhere, all throw InputError: that of their own rank, or else that of the first other.
// The world is as good as before then. D642: more different tags than a transport can tell apart.
[[nodiscard]] Links connect(comm::Communicator& world, const plan::RankProgram& program,
                            const std::vector<Diagnostic>& problems);

}  // namespace shiplap::run
