#include "nccl.h"

#include <algorithm>
#include <set>

namespace shiplap::oracle {
namespace {

using plan::flat::Operation;

bool is_message(const Operation& op) {
  return std::holds_alternative<plan::Send>(op.source->action) ||
         std::holds_alternative<plan::Receive>(op.source->action);
}
bool is_call(const Operation& op) {
  return std::holds_alternative<plan::Collective>(op.source->action) ||
         std::holds_alternative<plan::Exchange>(op.source->action);
}

const std::string& channel_of(const Operation& op) {
  if (const auto* send = std::get_if<plan::Send>(&op.source->action)) return send->channel;
  return std::get<plan::Receive>(op.source->action).channel;
}

// The communicators that an operation uses, by name; of a batch those of its members.
std::set<std::string> communicators(const Job& job, std::size_t node) {
  const Operation& op = job.operation(node);
  const std::size_t rank = job.rank_of(node);
  if (is_call(op)) return {key_of(job.program(node), op)};
  if (is_message(op)) return {"messages " + channel_of(op)};
  std::set<std::string> all;
  for (std::size_t k = node + 1; k < job.first[rank + 1]; ++k) {
    const std::int32_t batch = job.operation(k).batch;
    if (batch < 0 || job.first[rank] + static_cast<std::size_t>(batch) != node) continue;
    all.merge(communicators(job, k));
  }
  return all;
}

}  // namespace

Machine machine_on_nccl(const Job& job, const Matching& matching) {
  std::vector<Node> nodes = nodes_of(job, matching, Sends::rendezvous);
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    for (std::size_t b = job.first[rank]; b < job.first[rank + 1]; ++b) {
      if (nodes[b].is_member) continue;
      const std::set<std::string> mine = communicators(job, b);
      for (std::size_t a = job.first[rank]; a < b; ++a) {
        if (nodes[a].is_member) continue;
        const std::set<std::string> theirs = communicators(job, a);
        const auto shared = [&](const std::string& name) { return theirs.contains(name); };
        if (std::ranges::any_of(mine, shared)) nodes[b].complete_before_start.push_back(a);
      }
    }
  }
  return Machine(std::move(nodes));
}

bool messages_cross(const Job& job, const Matching& matching) {
  for (const auto& [a, end_of_a] : matching.other_end) {
    for (const auto& [b, end_of_b] : matching.other_end) {
      if (!std::holds_alternative<plan::Send>(job.operation(a).source->action)) continue;
      if (!std::holds_alternative<plan::Send>(job.operation(b).source->action)) continue;
      const bool same_ends = job.rank_of(a) == job.rank_of(b) &&
                             job.operation(a).peer == job.operation(b).peer &&
                             channel_of(job.operation(a)) == channel_of(job.operation(b));
      if (same_ends && a < b && end_of_a > end_of_b) return true;
    }
  }
  return false;
}

bool batched_by_half(const Job& job, const Matching& matching) {
  return std::ranges::any_of(matching.other_end, [&](const auto& ends) {
    return (job.operation(ends.first).batch < 0) != (job.operation(ends.second).batch < 0);
  });
}

bool turns_in_place(const Job& job) {
  for (std::size_t node = 0; node < job.nodes(); ++node) {
    const Operation& op = job.operation(node);
    const auto* call = std::get_if<plan::Collective>(&op.source->action);
    if (call == nullptr || call->kind != CollectiveKind::all_to_all) continue;
    if (job.program(node).groups[op.group].ranks.size() == 1) continue;
    if (op.from.count > 0 && op.from.buffer == op.to.buffer && op.from.begin == op.to.begin) {
      return true;
    }
  }
  return false;
}

}  // namespace shiplap::oracle
