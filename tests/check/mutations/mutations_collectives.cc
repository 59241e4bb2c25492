// Bugs in single calls of a group: missing, extra, of another kind, size, type, operator, root.
#include <algorithm>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Collective;
using plan::Operation;
using plan::Value;

namespace {

std::vector<Call> calls_of_kind(const Draft& draft, CollectiveKind kind) {
  std::vector<Call> all = collectives(draft);
  std::erase_if(
      all, [&](const Call& call) { return collective(draft, call.members.front()).kind != kind; });
  return all;
}

// A member of a call.
struct Member {
  Call call;
  std::size_t which = 0;
};

std::vector<Member> members(const std::vector<Call>& all) {
  std::vector<Member> result;
  for (const Call& call : all) {
    for (std::size_t k = 0; k < call.members.size(); ++k) result.push_back({call, k});
  }
  return result;
}

std::optional<Value> content_of(const Draft& draft, Mark mark) {
  const Value* value = content(draft, mark, collective(draft, mark).from);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

bool in_place(const Draft& draft, const Call& call) {
  return std::ranges::all_of(call.members, [&](Mark mark) {
    return same_rows(collective(draft, mark).from, collective(draft, mark).to);
  });
}

// Reads that state all contributions; without them a missing one would not be found.
Readers whole_readers(const Draft& draft, const Value& value, const Call& call) {
  Readers found = readers_after(draft, value, call.members);
  std::erase_if(found.marks, [&](Mark mark) {
    return std::ranges::none_of(
        accesses(*draft.line(mark).operation, plan::Access::Kind::reads), [&](const auto* access) {
          return same_tensor(access->value, value) && access->value.sum == plan::Sum::complete;
        });
  });
  return found;
}

std::optional<Outcome> drop_if(Draft& draft, Planter& planter, bool gradient) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const Collective& first = collective(draft, call.members.front());
    const bool reduces =
        first.kind == CollectiveKind::all_reduce || first.kind == CollectiveKind::reduce_scatter;
    if (!reduces || first.scale != plan::Ratio() ||
        (first.kind == CollectiveKind::reduce_scatter && overlap(draft, first.from, first.to))) {
      return std::nullopt;
    }
    const auto value = content_of(draft, call.members.front());
    if (!value || tensor_of(draft, *value).sum.empty() || is_gradient(draft, *value) != gradient) {
      return std::nullopt;
    }
    const Readers found = whole_readers(draft, *value, call);
    if (!found.any()) return std::nullopt;
    drop_reduction(draft, call);
    return found_by(gradient ? Codes{"D741", "D740"} : Codes{"D740", "D741"}, found);
  });
}

}  // namespace

std::optional<Outcome> drop_collective_on_one(Draft& draft, Planter& planter) {
  return planter.any_of(members(collectives(draft)),
                        [&](const Member& member) -> std::optional<Outcome> {
                          const Mark mark = member.call.members[member.which];
                          const Line line = draft.line(mark);
                          if (line.batch != 0) return std::nullopt;
                          Outcome outcome{.codes = {"D701"}, .ranks = {line.rank}};
                          outcome.places.push_back({line.rank, line.index});
                          // Equal calls are indistinguishable, so any later one may be missing.
                          for (const Call& call : collectives(draft)) {
                            if (call.ranks == member.call.ranks &&
                                call.channel == member.call.channel && call.n > member.call.n) {
                              outcome.marks.push_back(call.members[member.which]);
                            }
                          }
                          draft.erase(mark);
                          return outcome;
                        });
}

std::optional<Outcome> drop_forward_reduction(Draft& draft, Planter& planter) {
  return drop_if(draft, planter, false);
}

std::optional<Outcome> drop_gradient_reduction(Draft& draft, Planter& planter) {
  return drop_if(draft, planter, true);
}

std::optional<Outcome> duplicate_gradient_reduction(Draft& draft, Planter& planter) {
  const auto candidates = calls_of_kind(draft, CollectiveKind::all_reduce);
  return planter.any_of(candidates, [&](const Call& call) -> std::optional<Outcome> {
    const auto value = content_of(draft, call.members.front());
    if (!value || !is_gradient(draft, *value) || !in_place(draft, call)) return std::nullopt;
    for (const Mark mark : call.members) draft.insert_before(mark, *draft.line(mark).operation);
    return Outcome{.codes = {"D742"}, .marks = call.members};
  });
}

std::optional<Outcome> reduce_becomes_gather(Draft& draft, Planter& planter) {
  const auto candidates = calls_of_kind(draft, CollectiveKind::all_reduce);
  return planter.any_of(candidates, [&](const Call& call) -> std::optional<Outcome> {
    const auto size = static_cast<std::int64_t>(call.members.size());
    const Collective& first = collective(draft, call.members.front());
    const auto value = content_of(draft, call.members.front());
    if (!value || !in_place(draft, call) || first.from.count.literal() % size != 0 ||
        first.scale != plan::Ratio()) {
      return std::nullopt;
    }
    const Readers found = whole_readers(draft, *value, call);
    if (!found.any()) return std::nullopt;
    for (std::size_t k = 0; k < call.members.size(); ++k) {
      Collective& each = collective(draft, call.members[k]);
      each.kind = CollectiveKind::all_gather;
      each.from = piece(each.to, k, call.members.size());
    }
    return found_by({"D741", "D740"}, found);
  });
}

std::optional<Outcome> gather_becomes_reduce(Draft& draft, Planter& planter) {
  const auto candidates = calls_of_kind(draft, CollectiveKind::all_gather);
  return planter.any_of(candidates, [&](const Call& call) -> std::optional<Outcome> {
    if (collective(draft, call.members.front()).split.exists()) return std::nullopt;
    for (std::size_t k = 0; k < call.members.size(); ++k) {
      Collective& each = collective(draft, call.members[k]);
      each.kind = CollectiveKind::all_reduce;
      each.to =
          overlap(draft, each.from, each.to) ? each.from : piece(each.to, 0, call.members.size());
    }
    return Outcome{.codes = {"D743", "D742"}, .marks = call.members};
  });
}

std::optional<Outcome> reduce_becomes_broadcast_on_one(Draft& draft, Planter& planter) {
  const auto candidates = members(calls_of_kind(draft, CollectiveKind::all_reduce));
  return planter.any_of(candidates, [&](const Member& member) -> std::optional<Outcome> {
    Collective& call = collective(draft, member.call.members[member.which]);
    call.kind = CollectiveKind::broadcast;
    call.op = ReduceOp::sum;
    call.scale = {};
    return found_at_member({"D703"}, member.call, member.which);
  });
}

std::optional<Outcome> other_count_on_one(Draft& draft, Planter& planter) {
  const auto candidates = members(collectives(draft));
  return planter.any_of(candidates, [&](const Member& member) -> std::optional<Outcome> {
    Collective& call = collective(draft, member.call.members[member.which]);
    const bool whole = call.kind == CollectiveKind::all_reduce ||
                       call.kind == CollectiveKind::broadcast ||
                       call.kind == CollectiveKind::reduce;
    if (!whole || call.from.count.literal() < 2) return std::nullopt;
    call.from.count = call.from.count.literal() - 1;
    call.to.count = call.to.count.literal() - 1;
    return found_at_member({"D704"}, member.call, member.which);
  });
}

namespace {

DType other_type(DType type) {
  switch (bytes_of(type)) {
    case 8:
      return type == DType::f64 ? DType::i64 : DType::f64;
    case 4:
      return type == DType::f32 ? DType::i32 : DType::f32;
    case 2:
      return type == DType::bf16 ? DType::f16 : DType::bf16;
    default:
      return type == DType::u8 ? DType::i8 : DType::u8;
  }
}

bool uses(const Draft& draft, Mark mark, plan::BufferId a, plan::BufferId b) {
  return std::ranges::any_of(touches(draft, mark), [&](const Touch& touch) {
    return touch.region.buffer == a || touch.region.buffer == b;
  });
}

}  // namespace

std::optional<Outcome> other_type_on_one(Draft& draft, Planter& planter) {
  const auto candidates = members(collectives(draft));
  return planter.any_of(candidates, [&](const Member& member) -> std::optional<Outcome> {
    const Mark mark = member.call.members[member.which];
    const Collective& call = collective(draft, mark);
    if (call.kind == CollectiveKind::barrier) return std::nullopt;
    const auto [from, to] = std::pair(call.from.buffer, call.to.buffer);
    const std::int32_t rank = draft.line(mark).rank;
    for (const Line& line : draft.lines(rank)) {
      const auto& action = line.operation->action;
      const bool message = std::holds_alternative<plan::Send>(action) ||
                           std::holds_alternative<plan::Receive>(action) ||
                           std::holds_alternative<plan::Exchange>(action) ||
                           std::holds_alternative<plan::Copy>(action);
      if (message && uses(draft, line.mark, from, to)) return std::nullopt;
    }
    Outcome outcome{.codes = {"D705"}};
    for (const Call& other : collectives(draft)) {
      for (std::size_t k = 0; k < other.members.size(); ++k) {
        if (draft.line(other.members[k]).rank != rank) continue;
        if (!uses(draft, other.members[k], from, to)) continue;
        const Outcome more = found_at_member({}, other, k);
        outcome.marks.insert(outcome.marks.end(), more.marks.begin(), more.marks.end());
      }
    }
    auto& buffers = draft.program(rank).buffers;
    buffers[from].type = other_type(buffers[from].type);
    if (to != from) buffers[to].type = other_type(buffers[to].type);
    return outcome;
  });
}

std::optional<Outcome> other_operator(Draft& draft, Planter& planter) {
  const bool on_all = planter.random.chance();
  const auto candidates = members(collectives(draft));
  return planter.any_of(candidates, [&](const Member& member) -> std::optional<Outcome> {
    const Mark mark = member.call.members[member.which];
    if (!reduces(collective(draft, mark).kind)) return std::nullopt;
    if (!on_all) {
      collective(draft, mark).op = ReduceOp::max;
      return found_at_member({"D706"}, member.call, member.which);
    }
    const auto value = content_of(draft, mark);
    if (!value || collective(draft, mark).kind == CollectiveKind::reduce) return std::nullopt;
    const Readers found = readers_after(draft, *value, member.call.members);
    if (!found.any()) return std::nullopt;
    for (const Mark each : member.call.members) {
      collective(draft, each).op = ReduceOp::max;
    }
    return found_by({"D746"}, found);
  });
}

std::optional<Outcome> other_root_on_one(Draft& draft, Planter& planter) {
  const auto candidates = members(collectives(draft));
  return planter.any_of(candidates, [&](const Member& member) -> std::optional<Outcome> {
    Collective& call = collective(draft, member.call.members[member.which]);
    if (!has_root(call.kind)) return std::nullopt;
    call.root = (call.root.literal() + 1) % static_cast<std::int64_t>(member.call.ranks.size());
    return found_at_member({"D707"}, member.call, member.which);
  });
}

std::optional<Outcome> extra_collective(Draft& draft, Planter& planter) {
  std::vector<Member> last;
  for (const Member& member : members(collectives(draft))) {
    const bool later = std::ranges::any_of(calls(draft), [&](const Call& call) {
      return call.ranks == member.call.ranks && call.channel == member.call.channel &&
             call.n > member.call.n;
    });
    if (!later) last.push_back(member);
  }
  return planter.any_of(last, [&](const Member& member) -> std::optional<Outcome> {
    const Line line = draft.line(member.call.members[member.which]);
    if (line.batch != 0) return std::nullopt;
    Operation extra = *line.operation;
    extra.async = false;
    extra.after.clear();
    for (const Line& other : draft.lines(line.rank)) {
      if (other.batch == 0) extra.after.push_back(draft.name_of(other.mark));
    }
    // It looks like the call before it, so either is the one too many.
    Outcome outcome{.codes = {"D702"}, .marks = {line.mark, draft.append(line.rank, extra)}};
    // Of two, one has a call too many or the other one too few.
    if (member.call.ranks.size() == 2) {
      outcome.codes.emplace_back("D701");
      const std::int32_t other = member.call.ranks[1 - member.which];
      outcome.ranks.push_back(other);
      for (const Line& each : draft.lines(other)) {
        if (each.index >= draft.line(member.call.members[1 - member.which]).index) {
          outcome.marks.push_back(each.mark);
        }
      }
    }
    return outcome;
  });
}

}  // namespace shiplap::mutations
