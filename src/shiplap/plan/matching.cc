// Static message matching.
//
// Problem: find for every send its receive and for every collective call the calls of the other
// members, for all ranks of a mesh, without executing anything.
//
// Idea: MPI matches messages of one (communicator, source, destination, tag) in the order in which
// they are posted, and collectives of one communicator in the order in which they are called (MPI
// standard, "non-overtaking" messages); NCCL does the same. A plan has no wildcard receives and no
// matching by arrival. So the match of an operation is a pair: its queue or group, and its number
// there, counted in the program order of its own rank. Times and interleavings have no influence,
// which is why a single execution decides whether a plan deadlocks (execution.cc).
//
// Ranks join one after the other, in ascending order, and each is scanned once. Queues are found by
// hash of (from, to, channel, tag), groups by hash of first rank, size and channel, then compared.
// A rank looks up each of its groups once, not for each call.
//
// The matcher does not check whether matched operations are compatible; check and sim do, and
// report it with their own codes. Ends without a counterpart are legal here: a queue may have more
// sends than receives, and a group may be incomplete.
#include "shiplap/plan/matching.h"

#include <algorithm>
#include <utility>

namespace shiplap::plan {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::int64_t more) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  hash = (hash ^ static_cast<std::uint64_t>(more)) * kOdd;
  return hash ^ (hash >> 29U);
}

bool has_all_callers(const GroupCalls& group, const Symmetry& symmetry) {
  if (symmetry.axes.empty()) return std::ssize(group.callers) == group.ranks.size();
  for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
    if (group.slot_of(symmetry.representative(group.ranks[k].value)) < 0) return false;
  }
  return true;
}

}  // namespace

std::int32_t GroupCalls::slot_of(std::int32_t rank) const {
  const auto found = std::ranges::lower_bound(callers, rank);
  if (found == callers.end() || *found != rank) return -1;
  return static_cast<std::int32_t>(found - callers.begin());
}

std::size_t Matcher::KeyHash::operator()(const Key& key) const {
  return mixed(mixed(mixed(mixed(1, key.from), key.to), key.tag), key.channel);
}

void Matcher::join(const RankProgram& program, std::vector<Match>& matches) {
  const std::int32_t rank = program.rank.value;
  ids_.assign(program.groups.size(), -1);
  calls_.resize(std::max(calls_.size(), program.groups.size()));
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    const flat::Operation& op = program.operations[k];
    const auto operation = static_cast<std::int32_t>(k);
    Match match;
    if (const auto* send = std::get_if<Send>(&op.source->action)) {
      match = message({rank, op.peer.value, channel(send->channel), op.tag}, true, operation);
    } else if (const auto* receive = std::get_if<Receive>(&op.source->action)) {
      match = message({op.peer.value, rank, channel(receive->channel), op.tag}, false, operation);
    } else if (op.group.exists()) {
      std::int32_t& id = ids_[op.group.index()];
      if (id < 0) id = group(program.groups[op.group]);
      std::vector<std::int32_t>& calls = calls_[op.group.index()];
      match = {id, static_cast<std::int32_t>(calls.size())};
      calls.push_back(operation);
    }
    matches.push_back(match);
  }
  for (std::size_t k = 0; k < ids_.size(); ++k) {
    if (ids_[k] < 0) continue;
    GroupCalls& group = matching_.groups[ids_[k]];
    group.callers.push_back(rank);
    group.operations.insert(group.operations.end(), calls_[k].begin(), calls_[k].end());
    group.ends.push_back(std::ssize(group.operations));
    group.max_calls = std::max<std::int64_t>(group.max_calls, std::ssize(calls_[k]));
    calls_[k].clear();
  }
}

Matching Matcher::finish(const Symmetry& symmetry) && {
  for (MessageQueue& queue : matching_.queues) {
    queue.first = matching_.messages;
    matching_.messages += std::max(std::ssize(queue.sends), std::ssize(queue.receives));
  }
  for (GroupCalls& group : matching_.groups) {
    group.first = matching_.calls;
    group.complete = has_all_callers(group, symmetry);
    matching_.calls += group.max_calls;
  }
  return std::move(matching_);
}

Match Matcher::message(const Key& key, bool sends, std::int32_t operation) {
  const auto next = static_cast<std::int32_t>(matching_.queues.size());
  const auto [found, is_new] = queues_.try_emplace(key, next);
  if (is_new) {
    matching_.queues.push_back(
        {.from = key.from, .to = key.to, .channel = key.channel, .tag = key.tag});
  }
  MessageQueue& queue = matching_.queues[found->second];
  std::vector<std::int32_t>& side = sends ? queue.sends : queue.receives;
  side.push_back(operation);
  return {found->second, static_cast<std::int32_t>(side.size()) - 1};
}

std::int32_t Matcher::channel(const std::string& name) {
  const auto next = static_cast<std::int32_t>(channels_.size());
  const auto [found, is_new] = channels_.try_emplace(name, next);
  if (is_new) matching_.channels.push_back(name);
  return found->second;
}

std::int32_t Matcher::group(const flat::Group& group) {
  const std::uint64_t hash = mixed(
      mixed(std::hash<std::string>{}(group.channel), group.ranks[0].value), group.ranks.size());
  const auto [first, last] = groups_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const GroupCalls& known = matching_.groups[it->second];
    if (known.ranks == group.ranks && known.channel == group.channel) return it->second;
  }
  const auto id = static_cast<std::int32_t>(matching_.groups.size());
  GroupCalls& made = matching_.groups.emplace_back();
  made.ranks = group.ranks;
  made.channel = group.channel;
  groups_.emplace(hash, id);
  return id;
}

}  // namespace shiplap::plan
