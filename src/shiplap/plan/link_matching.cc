#include <functional>
#include <utility>

#include "shiplap/plan/link_matching_internal.h"

namespace shiplap::plan {
namespace {

std::uint64_t mixed(std::uint64_t hash, std::int64_t more) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15U;
  hash = (hash ^ static_cast<std::uint64_t>(more)) * kOdd;
  return hash ^ (hash >> 29U);
}

}  // namespace

std::size_t Matching::KeyHash::operator()(const Key& key) const {
  return mixed(mixed(mixed(mixed(1, key.from), key.to), key.tag), key.channel);
}

void Matching::join(const RankProgram& program) {
  known_.assign(program.groups.size(), -1);
  calls_.assign(program.groups.size(), 0);
  const std::int32_t rank = program.rank.value;
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    const flat::Operation& op = program.operations[k];
    const Place place{rank, static_cast<std::int32_t>(k)};
    if (const auto* send = std::get_if<Send>(&op.source->action)) {
      message({rank, op.peer.value, op.tag, channel(send->channel)}, place);
    } else if (const auto* receive = std::get_if<Receive>(&op.source->action)) {
      message({op.peer.value, rank, op.tag, channel(receive->channel)}, place);
    } else if (op.group.exists()) {
      meet(op, program, place);
    }
  }
}

void Matching::close() {
  for (const auto& [key, queue] : waiting_) {
    for (Place place = queue.first; place.exists();) {
      place = std::exchange(linked_.links[linked_.index(place)], Place{});
    }
  }
  waiting_.clear();
}

void Matching::message(const Key& key, Place place) {
  const auto [found, is_new] = waiting_.try_emplace(key, Queue{place, place});
  if (is_new) return;
  Queue& queue = found->second;
  if (linked_.step(queue.first).act == linked_.step(place).act) {  // one more of the same side
    linked_.links[linked_.index(queue.last)] = place;
    queue.last = place;
    return;
  }
  const Place other = queue.first;
  queue.first = linked_.link(other);
  linked_.links[linked_.index(other)] = place;
  linked_.links[linked_.index(place)] = other;
  if (!queue.first.exists()) waiting_.erase(found);
  const bool sends = linked_.step(place).act == Act::send;
  linked_.event(sends ? other : place).match = linked_.event(sends ? place : other).match;
}

void Matching::meet(const flat::Operation& op, const RankProgram& program, Place place) {
  const flat::Group& flat = program.groups[op.group];
  std::int32_t& known = known_[op.group.index()];
  if (known < 0) known = group(flat);
  LinkedGroup& group = linked_.groups[known];
  const auto n = static_cast<std::size_t>(calls_[op.group.index()]++);
  if (n == group.calls.size()) {
    group.calls.push_back(static_cast<std::int32_t>(linked_.calls.size()));
    linked_.calls.push_back({.group = known, .first = place});
  }
  const std::int32_t id = group.calls[n];
  linked_.call_of[linked_.index(place)] = id;
  Call& call = linked_.calls[id];
  if (call.listed++ > 0) linked_.links[linked_.index(call.last)] = place;
  call.last = place;
  if (flat.ranks[op.root].value == place.rank) call.root = place;
}

std::int32_t Matching::channel(const std::string& name) {
  const auto next = static_cast<std::int32_t>(channels_.size());
  return channels_.try_emplace(name, next).first->second;
}

std::int32_t Matching::group(const flat::Group& group) {
  const std::uint64_t hash = mixed(
      mixed(std::hash<std::string>{}(group.channel), group.ranks[0].value), group.ranks.size());
  const auto [first, last] = groups_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const LinkedGroup& known = linked_.groups[it->second];
    if (known.ranks == group.ranks && known.channel == group.channel) return it->second;
  }
  const auto id = static_cast<std::int32_t>(linked_.groups.size());
  linked_.groups.push_back({.ranks = group.ranks, .channel = group.channel});
  groups_.emplace(hash, id);
  return id;
}

}  // namespace shiplap::plan
