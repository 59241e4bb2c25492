// The order in which a rank's communication is done where a library keeps one.
#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <utility>

#include "shiplap/check/execution_internal.h"

namespace shiplap::check {
namespace {

bool communicates(const Op& op) {
  return op.act == Act::send || op.act == Act::receive || op.act == Act::collective ||
         op.act == Act::exchange || op.act == Act::batch;
}

// One for each group, and one for the messages of each channel. (torch gives the messages of two
// ranks one of their own, unless they are batched or the group was made with a device.)
struct Communicator {
  std::int32_t group = -1;
  std::int32_t channel = -1;
  friend auto operator<=>(const Communicator&, const Communicator&) = default;
};

Communicator communicator_of(const Job& job, const Op& op) {
  if (op.act == Act::collective || op.act == Act::exchange) return {.group = op.group};
  return {.channel = job.keys[op.group].channel};
}

std::set<Communicator> communicators_of(const Job& job, const Script& script, std::int32_t k) {
  if (script[k].act != Act::batch) return {communicator_of(job, script[k])};
  std::set<Communicator> all;
  const std::int32_t end = script.batch_end(k);
  for (std::int32_t m = k + 1; m < end; ++m) all.insert(communicator_of(job, script[m]));
  return all;
}

}  // namespace

Queue::Queue(const Job& job, const Script& script, Queues queues) {
  first_.reserve(script.ops.size() + 1);
  std::int32_t last = -1;
  std::map<Communicator, std::int32_t> last_of;
  for (std::int32_t k = 0; k < std::ssize(script.ops); ++k) {
    first_.push_back(static_cast<std::int32_t>(before_.size()));
    if (!communicates(script[k]) || script[k].member) continue;
    if (queues == Queues::one) {
      if (last >= 0) before_.push_back(last);
      last = k;
      continue;
    }
    for (const Communicator& communicator : communicators_of(job, script, k)) {
      const auto [found, is_first] = last_of.try_emplace(communicator, k);
      if (!is_first) before_.push_back(std::exchange(found->second, k));
    }
  }
  first_.push_back(static_cast<std::int32_t>(before_.size()));
}

}  // namespace shiplap::check
