#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

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

void find_members(Job& job) {
  const Symmetry& symmetry = job.symmetry;
  for (plan::GroupCalls& linked : job.linked.matching.groups) {
    CallGroup& group = job.groups.emplace_back(CallGroup{.linked = &linked});
    for (const std::int32_t rank : linked.callers) group.scripts.push_back(job.script_of[rank]);
    // Axes that the group goes along: a member behind the first stands at another position there.
    std::vector<bool> along(symmetry.axes.size());
    for (std::int64_t k = 1; k < linked.ranks.size(); ++k) {
      const std::vector<std::int64_t> at = symmetry.positions(linked.ranks[k].value);
      for (std::size_t a = 0; a < along.size(); ++a) along[a] = along[a] || at[a] != 0;
    }
    for (std::int64_t k = 0; k < linked.ranks.size(); ++k) {
      Member member{.rank = linked.ranks[k].value};
      member.slot = linked.slot_of(symmetry.representative(member.rank));
      if (!symmetry.axes.empty()) {
        member.positions = symmetry.positions(member.rank);
        for (std::size_t a = 0; a < along.size(); ++a) {
          if (!along[a]) member.positions[a] = -1;
        }
      }
      group.members.push_back(std::move(member));
    }
    linked.complete =
        std::ranges::all_of(group.members, [](const Member& member) { return member.slot >= 0; });
  }
}

namespace {

// The whole of what moves, in a member's own memory.
const Zone& whole(const Job& job, Place place, const plan::Collective& collective) {
  const Op& op = job.op(place);
  if (collective.kind == CollectiveKind::all_gather) return op.to;
  if (collective.kind != CollectiveKind::broadcast) return op.from;
  const CallGroup& group = job.groups[op.match.with];
  return group.ranks().find(Rank(place.rank)) == op.root ? op.from : op.to;
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
