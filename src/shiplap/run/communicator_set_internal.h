// The communicators of a plan: one for each group of collectives, one for each channel of messages.
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

// Tags 0 .. kDirectTags - 1 are used as they are; others are remapped.
inline constexpr std::int64_t kDirectTags = (comm::Communicator::kMaxTag + 1) / 2;

struct CommunicatorSet {
  IdVector<plan::flat::GroupId, std::unique_ptr<comm::Communicator>> groups;  // of this rank
  std::map<std::string, std::unique_ptr<comm::Communicator>> channels;
  std::vector<std::unique_ptr<comm::Communicator>> others;  // of groups that only other ranks use
  std::map<std::int64_t, int> remapped_tags;  // tag of the plan -> tag of the transport

  [[nodiscard]] int tag(std::int64_t tag) const {
    return tag >= 0 && tag < kDirectTags ? static_cast<int>(tag) : remapped_tags.at(tag);
  }
};

// The channel of a send or receive; "" is `main`.
[[nodiscard]] const std::string* message_channel(const plan::flat::Operation& op);

// Collective: all ranks of `world` call it, each with its own program and the problems found in it.
// If any rank has a problem, all throw InputError: their own problems, or else those of the first
// rank that has any. `world` stays usable. Throws D642 if there are more tags than supported.
[[nodiscard]] CommunicatorSet create_communicators(comm::Communicator& world,
                                                   const plan::RankProgram& program,
                                                   const std::vector<Diagnostic>& problems);

}  // namespace shiplap::run
