#include <algorithm>
#include <functional>
#include <unordered_map>

#include "shiplap/base/error.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

const std::string& channel_of(const plan::Operation& source) {
  const auto* send = std::get_if<plan::Send>(&source.action);
  return send != nullptr ? send->channel : std::get<plan::Receive>(source.action).channel;
}

bool same_pieces(const plan::Plan& plan, plan::ListId a, plan::ListId b) {
  if (a == b) return true;
  if (!a.exists() || !b.exists()) return false;
  return plan.lists[a].values == plan.lists[b].values;
}

}  // namespace

std::int32_t Symmetry::representative(std::int32_t rank) const {
  std::int64_t result = rank;
  for (std::size_t k = 0; k < axes.size(); ++k) {
    result -= rank / strides[k] % sizes[k] * strides[k];
  }
  return static_cast<std::int32_t>(result);
}

std::vector<std::int64_t> Symmetry::positions(std::int32_t rank) const {
  std::vector<std::int64_t> result;
  for (std::size_t k = 0; k < axes.size(); ++k) result.push_back(rank / strides[k] % sizes[k]);
  return result;
}

std::int32_t Matching::channel(const std::string& name) {
  const auto found = std::ranges::find(job_.channels, name);
  if (found == job_.channels.end()) {
    job_.channels.push_back(name);
    return static_cast<std::int32_t>(job_.channels.size()) - 1;
  }
  return static_cast<std::int32_t>(found - job_.channels.begin());
}

std::int32_t Matching::group(const plan::flat::Group& group) {
  const std::uint64_t hash = mixed(
      mixed(std::hash<std::string>{}(group.channel), group.ranks[0].value), group.ranks.size());
  const std::int32_t found = groups_.find(hash, [&](std::int32_t known) {
    const CallGroup& other = job_.groups[known];
    return other.ranks == group.ranks && other.channel == group.channel;
  });
  if (found >= 0) return found;
  const auto id = static_cast<std::int32_t>(job_.groups.size());
  CallGroup& made = job_.groups.emplace_back();
  made.ranks = group.ranks;
  made.channel = group.channel;
  groups_.insert(hash, id);
  return id;
}

void Matching::join(Script& script, const plan::RankProgram& program) {
  struct Known {
    std::int32_t group = -1;
    std::size_t slot = 0;
  };
  std::vector<Known> known(program.groups.size());
  const auto index = static_cast<std::int32_t>(job_.scripts.size());
  for (std::size_t k = 0; k < script.ops.size(); ++k) {
    Op& op = script.ops[k];
    const plan::flat::Operation& flat = program.operations[k];
    const auto place = static_cast<std::int32_t>(k);
    if (op.act == Act::collective || op.act == Act::exchange) {
      Known& here = known[flat.group.index()];
      if (here.group < 0) {
        here.group = group(program.groups[flat.group]);
        CallGroup& calls = job_.groups[here.group];
        here.slot = calls.scripts.size();
        calls.scripts.push_back(index);
        calls.calls.emplace_back();
      }
      op.group = here.group;
      auto& calls = job_.groups[here.group].calls[here.slot];
      op.n = static_cast<std::int32_t>(calls.size());
      calls.push_back(place);
    }
    if (op.act != Act::send && op.act != Act::receive) continue;
    const bool sends = op.act == Act::send;
    const std::int32_t from = sends ? script.rank : op.root;
    const std::int32_t to = sends ? op.root : script.rank;
    const std::int32_t over = channel(channel_of(*op.source));
    const std::uint64_t hash =
        mixed(mixed(mixed(static_cast<std::uint64_t>(from), to), over), flat.tag);
    std::int32_t id = keys_.find(hash, [&](std::int32_t other) {
      const MessageKey& key = job_.keys[other];
      return key.from == from && key.to == to && key.channel == over && key.tag == flat.tag;
    });
    if (id < 0) {
      id = static_cast<std::int32_t>(job_.keys.size());
      job_.keys.push_back({.from = from, .to = to, .channel = over, .tag = flat.tag});
      keys_.insert(hash, id);
    }
    MessageKey& key = job_.keys[id];
    std::vector<std::int32_t>& side = sends ? key.sends : key.receives;
    op.group = id;
    op.n = static_cast<std::int32_t>(side.size());
    side.push_back(place);
  }
}

void Matching::fill_members(CallGroup& group) const {
  const Symmetry& symmetry = job_.symmetry;
  // Axes that the group goes along: a member behind the first stands at another position there.
  std::vector<bool> along(symmetry.axes.size());
  for (std::int64_t k = 1; k < group.ranks.size(); ++k) {
    const std::vector<std::int64_t> at = symmetry.positions(group.ranks[k].value);
    for (std::size_t a = 0; a < along.size(); ++a) along[a] = along[a] || at[a] != 0;
  }
  std::unordered_map<std::int32_t, std::int32_t> slots;  // by script
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    slots.emplace(group.scripts[slot], static_cast<std::int32_t>(slot));
  }
  for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
    Member member{.slot = -1, .rank = group.ranks[k].value};
    const std::int32_t script = job_.script_of[symmetry.representative(member.rank)];
    const auto found = slots.find(script);
    if (found != slots.end()) member.slot = found->second;
    if (!symmetry.axes.empty()) {
      member.positions = symmetry.positions(member.rank);
      for (std::size_t a = 0; a < along.size(); ++a) {
        if (!along[a]) member.positions[a] = -1;
      }
    }
    group.members.push_back(std::move(member));
  }
}

void Matching::close() {
  for (MessageKey& key : job_.keys) {
    key.first = job_.messages;
    job_.messages += std::max(std::ssize(key.sends), std::ssize(key.receives));
  }
  for (CallGroup& group : job_.groups) {
    group.first = job_.meetings;
    for (const auto& calls : group.calls) {
      group.most_calls = std::max<std::int64_t>(group.most_calls, std::ssize(calls));
    }
    job_.meetings += group.most_calls;
    fill_members(group);
  }
}

namespace {

// The whole of what moves, in a member's own memory.
const Zone& whole(const Job& job, Place place, const plan::Collective& collective) {
  const Op& op = job.op(place);
  if (collective.kind == CollectiveKind::all_gather) return op.to;
  if (collective.kind != CollectiveKind::broadcast) return op.from;
  const CallGroup& group = job.groups[op.group];
  return group.ranks.find(Rank(place.rank)) == op.root ? op.from : op.to;
}

DType type_of(const Job& job, Place place, const Zone& zone) {
  const Script& script = job.script(place.rank);
  return job.plan.programs[script.program].buffers[zone.buffer].type;
}

bool same_size(const Job& job, Place a, const Zone& x, Place b, const Zone& y) {
  const Script& p = job.script(a.rank);
  const Script& q = job.script(b.rank);
  return x.count == y.count && p.row_bytes[x.buffer] == q.row_bytes[y.buffer];
}

Misfit fit_collectives(const Job& job, Place a, Place b, const plan::Collective& x,
                       const plan::Collective& y) {
  if (x.kind != y.kind) return Misfit::kind;
  if (x.kind == CollectiveKind::barrier) return Misfit::none;
  if (has_root(x.kind) && job.op(a).root != job.op(b).root) return Misfit::root;
  if (reduces(x.kind) && (x.op != y.op || x.scale != y.scale)) return Misfit::op;
  const Zone& here = whole(job, a, x);
  const Zone& there = whole(job, b, y);
  const Op& p = job.op(a);
  const Op& q = job.op(b);
  if (type_of(job, a, p.from) != type_of(job, b, q.from) ||
      type_of(job, a, p.to) != type_of(job, b, q.to)) {
    return Misfit::type;
  }
  if (!same_size(job, a, here, b, there)) return Misfit::size;
  if (has_pieces(x.kind) && !same_pieces(job.plan, x.split, y.split)) return Misfit::split;
  return Misfit::none;
}

}  // namespace

Misfit fit(const Job& job, Place a, Place b) {
  const Op& x = job.op(a);
  const Op& y = job.op(b);
  const bool messages = x.act == Act::send || x.act == Act::receive;
  if (messages) {
    const Zone& here = x.act == Act::send ? x.from : x.to;
    const Zone& there = y.act == Act::send ? y.from : y.to;
    if (type_of(job, a, here) != type_of(job, b, there)) return Misfit::type;
    return same_size(job, a, here, b, there) ? Misfit::none : Misfit::size;
  }
  if (x.act != y.act) return Misfit::kind;
  const auto* first = std::get_if<plan::Collective>(&x.source->action);
  if (first != nullptr) {
    return fit_collectives(job, a, b, *first, std::get<plan::Collective>(y.source->action));
  }
  const auto& one = std::get<plan::Exchange>(x.source->action);
  const auto& other = std::get<plan::Exchange>(y.source->action);
  if (one.table != other.table || one.reversed != other.reversed) return Misfit::table;
  if (type_of(job, a, x.from) != type_of(job, b, y.from)) return Misfit::type;
  const auto bytes = [&](Place place, const Zone& zone) {
    return job.script(place.rank).row_bytes[zone.buffer];
  };
  return bytes(a, x.from) == bytes(b, y.from) ? Misfit::none : Misfit::size;
}

}  // namespace shiplap::check
