#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string_view>

#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {
namespace {

using dump::Call;
using dump::CallKind;
using dump::CallState;
using dump::GroupId;
using dump::RankDump;

// Barely more than the finalizer of splitmix64.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15U + b + 0x7f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

// gloo never says that a call is complete: it retires it.
bool retires_when_complete(const RankDump& dump) {
  return dump.library == "gloo" || dump.library == "c10d" || dump.library == "mpi";
}

}  // namespace

std::int64_t elements(const dump::Sizes& sizes) {
  std::int64_t total = 0;
  for (const std::vector<std::int64_t>& tensor : sizes) {
    std::int64_t product = 1;
    for (const std::int64_t dimension : tensor) {
      // A damaged file has any sizes.
      if (__builtin_mul_overflow(product, dimension, &product)) return -1;
    }
    if (__builtin_add_overflow(total, product, &total)) return -1;
  }
  return total;
}

bool is_all_to_all(std::string_view operation) {
  return operation.starts_with("all_to_all") || operation.starts_with("alltoall");
}

bool has_uneven_sizes(const std::string& operation) {
  static constexpr std::array<std::string_view, 6> kUneven{
      "gather", "scatter", "all_gather", "reduce_scatter", "coalesced", "barrier"};
  return is_all_to_all(operation) || std::ranges::find(kUneven, operation) != kUneven.end();
}

Divergence contradiction(const dump::Signature& a, const dump::Signature& b) {
  if (a.operation != b.operation) return Divergence::operation;
  // Only the root of a gather has outputs.
  if (a.input_types != b.input_types && !a.input_types.empty() && !b.input_types.empty() &&
      a.input_types.front() != b.input_types.front()) {
    return Divergence::dtype;
  }
  const bool is_list = a.operation == "all_gather" || a.operation == "reduce_scatter";
  const bool by_rank =
      has_uneven_sizes(a.operation) && !(is_list && a.input_sizes.size() == b.input_sizes.size());
  if (by_rank) return Divergence::none;
  const bool rooted = a.operation == "reduce" || a.operation == "broadcast";
  if (elements(a.input_sizes) != elements(b.input_sizes)) return Divergence::size;
  if (!rooted && elements(a.output_sizes) != elements(b.output_sizes)) return Divergence::size;
  return Divergence::none;
}

Progress::Progress(const dump::JobDump& job, std::int32_t world)
    : job_(job),
      world_(std::max(world, job.world)),
      dumps_(at(world_)),
      units_(at(world_)),
      pending_(at(world_)),
      roles_(at(world_)),
      places_(at(world_)) {
  for (const RankDump& dump : job.ranks) {
    dumps_[at(dump.rank)] = &dump;
    for (const Call& call : dump.calls) {
      last_ns_ = std::max({last_ns_, call.created_ns, call.started_ns, call.completed_ns});
    }
    make_units(dump);
    make_roles(dump);
    make_keys(dump);
  }
  make_groups();
  for (const RankDump& dump : job.ranks) {
    complete_in_order(dump.rank);
    std::vector<std::int32_t>& pending = pending_[at(dump.rank)];
    const std::vector<Unit>& units = units_[at(dump.rank)];
    for (std::size_t k = 0; k < units.size(); ++k) {
      if (!units[k].complete) pending.push_back(static_cast<std::int32_t>(k));
    }
  }
}

// The calls of a batch have one number and lie next to each other; the last one has its state.
void Progress::make_units(const RankDump& dump) {
  std::vector<Unit>& units = units_[at(dump.rank)];
  const bool by_retiring = retires_when_complete(dump);
  for (std::size_t k = 0; k < dump.calls.size(); ++k) {
    const Call& call = dump.calls[k];
    const auto index = static_cast<std::int32_t>(k);
    const bool continues = !units.empty() && units.back().group == call.group &&
                           units.back().sequence == call.sequence &&
                           units.back().is_p2p == call.is_p2p && call.sequence >= 0 &&
                           dump.calls[at(units.back().last)].kind != CallKind::batch;
    if (!continues) {
      units.push_back(
          {.first = index, .group = call.group, .sequence = call.sequence, .is_p2p = call.is_p2p});
    }
    Unit& unit = units.back();
    unit.last = index;
    const bool complete = call.state == CallState::completed || call.completed_ns > 0;
    unit.ended = !complete && by_retiring && call.retired;
    unit.complete = complete || unit.ended;
    unit.started = complete || call.state == CallState::started || call.started_ns > 0;
    unit.timed_out = call.retired && !unit.complete;
  }
}

// A description names a role if it is the only group of the rank with it; else its place among the
// groups with that description and size does.
void Progress::make_roles(const RankDump& dump) {
  std::vector<std::uint64_t>& roles = roles_[at(dump.rank)];
  roles.assign(job_.groups.size(), 0);
  std::map<std::pair<std::string, std::size_t>, std::uint64_t> places;
  for (const GroupId id : dump.groups) {
    const dump::Group& group = job_.groups[id];
    const std::uint64_t place = places[{group.description, group.ranks.size()}]++;
    roles[id.index()] =
        mix(mix(std::hash<std::string>{}(group.description), group.ranks.size()), place);
  }
}

std::uint64_t Progress::role(std::int32_t rank, GroupId group) const {
  return roles_[at(rank)][group.index()];
}

// What a unit does, without its number and without what may differ between ranks that run the same
// program: the sizes of uneven exchanges, the absolute rank of a peer.
void Progress::make_keys(const RankDump& dump) {
  IdVector<dump::SignatureId, std::uint64_t> keys(job_.signatures.size());
  for (std::size_t k = 0; k < job_.signatures.size(); ++k) {
    const dump::Signature& signature = job_.signatures[dump::SignatureId(k)];
    std::uint64_t key = std::hash<std::string>{}(signature.operation);
    for (const std::string& type : signature.input_types) {
      key = mix(key, std::hash<std::string>{}(type));
    }
    if (!has_uneven_sizes(signature.operation)) {
      key = mix(key, static_cast<std::uint64_t>(elements(signature.input_sizes)));
      key = mix(key, static_cast<std::uint64_t>(elements(signature.output_sizes)));
    }
    keys[dump::SignatureId(k)] = key;
  }
  std::map<std::pair<GroupId, std::int32_t>, std::int32_t> places;  // of ranks in groups
  const auto local = [&](GroupId group, std::int32_t rank) {
    const auto [known, is_new] = places.try_emplace({group, rank});
    if (is_new) {
      const std::vector<std::int32_t>& ranks = job_.groups[group].ranks;
      const auto found = std::ranges::find(ranks, rank);
      known->second =
          found == ranks.end() ? rank : static_cast<std::int32_t>(found - ranks.begin());
    }
    return known->second;
  };
  std::map<std::uint64_t, std::int32_t> place;  // by role
  for (Unit& unit : units_[at(dump.rank)]) {
    std::uint64_t key = role(dump.rank, unit.group);
    if (unit.is_p2p) place.emplace(key, local(unit.group, dump.rank));
    const auto size = static_cast<std::int32_t>(job_.groups[unit.group].ranks.size());
    for (std::int32_t k = unit.first; k <= unit.last; ++k) {
      const Call& call = dump.calls[at(k)];
      key = mix(key, keys[call.signature]);
      if (call.peer < 0) continue;
      std::int32_t distance = local(unit.group, call.peer) - local(unit.group, dump.rank);
      if (size > 0 && distance < 0) distance += size;
      key = mix(key, static_cast<std::uint64_t>(distance));
    }
    unit.key = key;
  }
  for (const auto& [role, index] : place) {
    places_[at(dump.rank)] =
        mix(mix(places_[at(dump.rank)], role), static_cast<std::uint64_t>(index));
  }
}

void Progress::make_groups() {
  groups_.resize(job_.groups.size());
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    const GroupId id(k);
    GroupProgress& group = groups_[id];
    for (const std::int32_t rank : job_.groups[id].ranks) {
      if (rank >= world_) continue;
      const RankDump* dump = dumps_[at(rank)];
      group.members.push_back({.rank = rank,
                               .has_dump = dump != nullptr,
                               .knows_all = dump != nullptr && !dump->evicted});
    }
  }
  for (const RankDump& dump : job_.ranks) {
    const std::vector<Unit>& units = units_[at(dump.rank)];
    IdVector<GroupId, std::int32_t> slots(groups_.size(), -1);  // of this rank
    for (std::size_t k = 0; k < units.size(); ++k) {
      const Unit& unit = units[k];
      if (unit.sequence < 0) continue;
      GroupProgress& group = groups_[unit.group];
      std::int32_t& slot = slots[unit.group];
      if (slot < 0) {
        auto found = std::ranges::find(group.members, dump.rank, &MemberCalls::rank);
        slot = static_cast<std::int32_t>(found - group.members.begin());
        if (found == group.members.end()) {  // no dump lists the members
          group.members.push_back(
              {.rank = dump.rank, .has_dump = true, .knows_all = !dump.evicted});
        }
      }
      MemberCalls* member = &group.members[at(slot)];
      if (unit.is_p2p) {
        member->entered = std::max(member->entered, dump.calls[at(unit.last)].collectives);
        continue;
      }
      if (member->units.empty()) member->first = unit.sequence;
      const std::int64_t place = unit.sequence - member->first;
      // Numbers may have gaps, but a damaged file has any numbers.
      if (place < 0 || place > std::ssize(units) + 1000) continue;
      if (place >= std::ssize(member->units)) member->units.resize(at(place + 1), -1);
      member->units[at(place)] = static_cast<std::int32_t>(k);
      member->entered = std::max(member->entered, unit.sequence);
    }
  }
  for (std::size_t k = 0; k < groups_.size(); ++k) {
    GroupProgress& group = groups_[GroupId(k)];
    bool any = false;
    for (const MemberCalls& member : group.members) {
      if (member.units.empty()) continue;
      const std::int64_t end = member.first + std::ssize(member.units);
      group.first = any ? std::min(group.first, member.first) : member.first;
      group.end = any ? std::max(group.end, end) : end;
      any = true;
    }
  }
}

// A communicator executes its collectives in order: if a later one is complete, so is this one.
void Progress::complete_in_order(std::int32_t rank) {
  std::vector<Unit>& units = units_[at(rank)];
  std::vector<bool> later(job_.groups.size());
  for (std::size_t k = units.size(); k-- > 0;) {
    Unit& unit = units[k];
    if (unit.is_p2p) continue;
    if (unit.complete) later[unit.group.index()] = true;
    if (later[unit.group.index()] && !unit.complete) unit.complete = unit.started = true;
  }
}

}  // namespace shiplap::postmortem
