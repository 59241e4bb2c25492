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

void find_members(Job& job) {
  const Symmetry& symmetry = job.symmetry;
  for (plan::GroupCalls& linked : job.linked.matching.groups) {
    CallGroup& group = job.groups.emplace_back(CallGroup{.linked = &linked});
    for (const std::int32_t rank : linked.callers) group.scripts.push_back(job.script_of[rank]);
    // The axes that the group spans: its members have different positions on them.
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
  }
}

namespace {

// The rows of a member that hold the data of all members.
const RowRange& whole(const Job& job, OperationId place, const plan::Collective& collective) {
  const ScriptOp& op = job.op(place);
  if (collective.kind == CollectiveKind::all_gather) return op.to;
  if (collective.kind != CollectiveKind::broadcast) return op.from;
  const CallGroup& group = job.groups[op.match.with];
  return group.ranks().find(Rank(place.rank)) == op.root ? op.from : op.to;
}

DType type_of(const Job& job, OperationId place, const RowRange& row_range) {
  const Script& script = job.script(place.rank);
  return job.plan.programs[script.program].buffers[row_range.buffer].type;
}

bool same_size(const Job& job, OperationId a, const RowRange& x, OperationId b, const RowRange& y) {
  const Script& p = job.script(a.rank);
  const Script& q = job.script(b.rank);
  return x.count == y.count && p.row_bytes[x.buffer] == q.row_bytes[y.buffer];
}

MismatchKind collective_mismatch(const Job& job, OperationId a, OperationId b,
                                 const plan::Collective& x, const plan::Collective& y) {
  if (x.kind != y.kind) return MismatchKind::kind;
  if (x.kind == CollectiveKind::barrier) return MismatchKind::none;
  if (has_root(x.kind) && job.op(a).root != job.op(b).root) return MismatchKind::root;
  if (reduces(x.kind) && (x.op != y.op || x.scale != y.scale)) return MismatchKind::op;
  const RowRange& here = whole(job, a, x);
  const RowRange& there = whole(job, b, y);
  const ScriptOp& p = job.op(a);
  const ScriptOp& q = job.op(b);
  if (type_of(job, a, p.from) != type_of(job, b, q.from) ||
      type_of(job, a, p.to) != type_of(job, b, q.to)) {
    return MismatchKind::type;
  }
  if (!same_size(job, a, here, b, there)) return MismatchKind::size;
  if (has_pieces(x.kind) && !same_pieces(job.plan, x.split, y.split)) return MismatchKind::split;
  return MismatchKind::none;
}

}  // namespace

MismatchKind mismatch_between(const Job& job, OperationId a, OperationId b) {
  const ScriptOp& x = job.op(a);
  const ScriptOp& y = job.op(b);
  const bool messages = x.action == ActionKind::send || x.action == ActionKind::receive;
  if (messages) {
    const RowRange& here = x.action == ActionKind::send ? x.from : x.to;
    const RowRange& there = y.action == ActionKind::send ? y.from : y.to;
    if (type_of(job, a, here) != type_of(job, b, there)) return MismatchKind::type;
    return same_size(job, a, here, b, there) ? MismatchKind::none : MismatchKind::size;
  }
  if (x.action != y.action) return MismatchKind::kind;
  const auto* first = std::get_if<plan::Collective>(&x.source->action);
  if (first != nullptr) {
    return collective_mismatch(job, a, b, *first, std::get<plan::Collective>(y.source->action));
  }
  const auto& one = std::get<plan::Exchange>(x.source->action);
  const auto& other = std::get<plan::Exchange>(y.source->action);
  if (one.table != other.table || one.reversed != other.reversed) return MismatchKind::table;
  if (type_of(job, a, x.from) != type_of(job, b, y.from)) return MismatchKind::type;
  const auto bytes = [&](OperationId place, const RowRange& row_range) {
    return job.script(place.rank).row_bytes[row_range.buffer];
  };
  return bytes(a, x.from) == bytes(b, y.from) ? MismatchKind::none : MismatchKind::size;
}

}  // namespace shiplap::check
