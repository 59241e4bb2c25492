// Bugs in matching: calls in another order, other groups.
#include <algorithm>
#include <set>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Collective;
using plan::Value;

namespace {

struct Pair {
  Call first;
  Call second;
  std::int32_t rank = -1;
  Mark a = 0;  // the operations on that rank
  Mark b = 0;
};

Mark on_rank(const Call& call, std::int32_t rank) {
  const auto at = std::ranges::find(call.ranks, rank);
  return at == call.ranks.end() ? 0 : call.members[at - call.ranks.begin()];
}

// Calls that a rank makes in this order, on one stream, and could make in the other.
std::vector<Pair> neighbours(const Draft& draft) {
  std::vector<Pair> all;
  const std::vector<Call> each = collectives(draft);
  for (const Call& first : each) {
    for (const Call& second : each) {
      for (const std::int32_t rank : first.ranks) {
        const Mark a = on_rank(first, rank);
        const Mark b = on_rank(second, rank);
        if (b == 0 || draft.line(a).index >= draft.line(b).index) continue;
        if (can_swap(draft, a, b)) all.push_back({first, second, rank, a, b});
      }
    }
  }
  return all;
}

// By their entries; the list that contains them is not visible.
bool same_split(const Draft& draft, plan::ListId a, plan::ListId b) {
  if (!a.exists() || !b.exists()) return a == b;
  return draft.plan.lists[a].values == draft.plan.lists[b].values;
}

bool look_alike(const Draft& draft, const Pair& pair) {
  const Collective& a = collective(draft, pair.a);
  const Collective& b = collective(draft, pair.b);
  if (a.kind == CollectiveKind::barrier || b.kind == CollectiveKind::barrier) {
    return a.kind == b.kind;
  }
  const auto& buffers = draft.program(pair.rank).buffers;
  return a.kind == b.kind && a.from.count == b.from.count && a.to.count == b.to.count &&
         a.op == b.op && a.scale == b.scale && a.root == b.root &&
         same_split(draft, a.split, b.split) &&
         buffers[a.from.buffer].row_bytes == buffers[b.from.buffer].row_bytes &&
         buffers[a.from.buffer].type == buffers[b.from.buffer].type;
}

std::vector<std::int32_t> sorted(std::vector<std::int32_t> ranks) {
  std::ranges::sort(ranks);
  return ranks;
}

std::vector<std::int32_t> shared(const Call& a, const Call& b) {
  std::vector<std::int32_t> both;
  std::ranges::set_intersection(sorted(a.ranks), sorted(b.ranks), std::back_inserter(both));
  return both;
}

void set_group(Collective& call, const std::vector<std::int32_t>& ranks) {
  call.over.positions.clear();
  for (const std::int32_t rank : ranks) call.over.positions.emplace_back(rank);
}

}  // namespace

std::optional<Outcome> swap_calls_of_one_group(Draft& draft, Planter& planter) {
  return planter.any_of(neighbours(draft), [&](const Pair& pair) -> std::optional<Outcome> {
    if (pair.first.ranks != pair.second.ranks || pair.first.channel != pair.second.channel ||
        pair.second.n != pair.first.n + 1) {
      return std::nullopt;
    }
    const bool alike = look_alike(draft, pair);
    const Value* x = content(draft, pair.a, collective(draft, pair.a).from);
    const Value* y = content(draft, pair.b, collective(draft, pair.b).from);
    const bool barriers = collective(draft, pair.a).kind == CollectiveKind::barrier;
    if (alike && (barriers || x == nullptr || y == nullptr || same_tensor(*x, *y))) {
      return std::nullopt;
    }
    // A later read would find it.
    if (alike && !reduces(collective(draft, pair.a).kind)) return std::nullopt;
    swap_actions(draft, pair.a, pair.b);
    Outcome outcome{.codes = {"D708"}, .marks = {pair.a, pair.b}};
    if (alike) outcome.codes.emplace_back("D743");
    if (alike || pair.first.ranks.size() == 2) {
      for (const Call& call : {pair.first, pair.second}) {
        outcome.marks.insert(outcome.marks.end(), call.members.begin(), call.members.end());
      }
    }
    return outcome;
  });
}

std::optional<Outcome> swap_calls_of_two_groups(Draft& draft, Planter& planter) {
  return planter.any_of(neighbours(draft), [&](const Pair& pair) -> std::optional<Outcome> {
    if (pair.first.ranks == pair.second.ranks && pair.first.channel == pair.second.channel) {
      return std::nullopt;
    }
    Outcome outcome{.codes = {"D720"}};
    std::size_t others = 0;
    for (const std::int32_t rank : shared(pair.first, pair.second)) {
      const Mark a = on_rank(pair.first, rank);
      const Mark b = on_rank(pair.second, rank);
      outcome.marks.insert(outcome.marks.end(), {a, b});
      if (rank != pair.rank && ordered(draft, a, b)) ++others;
    }
    if (others == 0) return std::nullopt;
    swap_actions(draft, pair.a, pair.b);
    return outcome;
  });
}

// ---- groups

namespace {

// Groups along other axes on which nothing else is called: there, the call would also disturb what
// others do.
std::vector<std::vector<std::int32_t>> other_groups(const Draft& draft, const Call& call,
                                                    std::int32_t rank) {
  std::set<std::vector<std::int32_t>> found;
  for (std::size_t k = 0; k < draft.plan.mesh.axes.size(); ++k) {
    const plan::AxisId axis(k);
    const plan::RankSet group = plan::along(draft.plan.mesh, std::span(&axis, 1), Rank(rank));
    std::vector<std::int32_t> ranks;
    for (std::int64_t j = 0; j < group.size(); ++j) ranks.push_back(group[j].value);
    const bool taken = std::ranges::any_of(draft.lines(rank), [&](const Line& line) {
      const auto* other = std::get_if<Collective>(&line.operation->action);
      return other != nullptr && other->over.channel == call.channel &&
             members_of(other->over) == ranks;
    });
    if (ranks.size() > 1 && ranks != call.ranks && !taken) found.insert(ranks);
  }
  return {found.begin(), found.end()};
}

bool in_sum(const Draft& draft, const Value& value, const plan::Run& run) {
  return tensor_of(draft, value).in_sum(run.dimension);
}

// What uniting these values does: other parts, the same contributions twice, or other contributions
// than were meant, which comes out later.
Outcome uniting(const Draft& draft, const std::vector<const Value*>& values) {
  if (std::ranges::find(values, nullptr) != values.end()) return {};
  const Value& first = *values.front();
  bool same_part = true;
  bool same_sum = true;
  for (const Value* value : values) {
    if (!same_tensor(*value, first) || value->runs.size() != first.runs.size()) {
      return {.codes = {"D743"}};
    }
    for (std::size_t k = 0; k < first.runs.size(); ++k) {
      if (value->runs[k] == first.runs[k]) continue;
      (in_sum(draft, first, first.runs[k]) ? same_sum : same_part) = false;
    }
  }
  if (!same_part) return {.codes = {"D743"}};
  if (same_sum) return {.codes = {"D742"}};
  Outcome later = found_by({"D742", "D741"}, readers(draft, first));
  for (const Call& call : collectives(draft)) {
    const Value* there = content(draft, call.members[0], collective(draft, call.members[0]).from);
    if (there == nullptr || !same_tensor(*there, first)) continue;
    later.marks.insert(later.marks.end(), call.members.begin(), call.members.end());
  }
  return later;
}

// The calls at one index of all ranks, if they are equal.
std::vector<Mark> calls_at(const Draft& draft, std::int32_t index) {
  std::vector<Mark> marks;
  std::set<std::vector<std::int32_t>> groups;
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    if (index >= std::ssize(draft.lines(rank))) return {};
    const Line& line = draft.lines(rank)[index];
    const auto* call = std::get_if<Collective>(&line.operation->action);
    if (call == nullptr || call->kind != CollectiveKind::all_reduce) return {};
    marks.push_back(line.mark);
    const Collective& first = collective(draft, marks.front());
    if (!same_rows(call->from, first.from) || call->over.channel != first.over.channel) return {};
    groups.insert(members_of(call->over));
  }
  // Every rank is in one of the groups, and in no other.
  std::size_t members = 0;
  for (const std::vector<std::int32_t>& group : groups) members += group.size();
  if (members != marks.size()) return {};
  return marks;
}

std::optional<Outcome> other_axis_on_one(Draft& draft, Planter& planter) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    if (collective(draft, call.members.front()).kind != CollectiveKind::all_reduce) {
      return std::nullopt;
    }
    const auto size = static_cast<std::int64_t>(call.members.size());
    const auto which = static_cast<std::size_t>(planter.random.between(0, size));
    const auto groups = other_groups(draft, call, call.ranks[which]);
    if (groups.empty()) return std::nullopt;
    set_group(collective(draft, call.members[which]), planter.random.pick(groups));
    return Outcome{.codes = {"D709"}, .marks = {call.members[which]}};
  });
}

std::optional<Outcome> other_axis_on_all(Draft& draft, Planter& planter) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const std::vector<Mark> marks = calls_at(draft, draft.line(call.members.front()).index);
    const auto groups = other_groups(draft, call, call.ranks.front());
    if (marks.empty() || groups.empty()) return std::nullopt;
    const std::vector<std::int32_t> group = planter.random.pick(groups);
    std::vector<const Value*> values;
    for (const std::int32_t rank : group) {
      const Mark mark = marks[rank];
      values.push_back(content(draft, mark, collective(draft, mark).from));
    }
    Outcome outcome = uniting(draft, values);
    if (outcome.codes.empty()) return std::nullopt;
    // Along the same axis, the ranks are as far apart.
    std::vector<std::vector<std::int32_t>> along;
    for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
      for (const auto& each : other_groups(draft, Call{.channel = call.channel}, rank)) {
        if (each.size() == group.size() && each[1] - each[0] == group[1] - group[0]) {
          along.push_back(each);
        }
      }
    }
    if (along.size() != marks.size()) return std::nullopt;
    for (std::size_t k = 0; k < marks.size(); ++k) set_group(collective(draft, marks[k]), along[k]);
    outcome.marks.insert(outcome.marks.end(), marks.begin(), marks.end());
    return outcome;
  });
}

}  // namespace

std::optional<Outcome> other_axis(Draft& draft, Planter& planter) {
  return planter.random.chance() ? other_axis_on_one(draft, planter)
                                 : other_axis_on_all(draft, planter);
}

std::optional<Outcome> rank_left_out_of_group(Draft& draft, Planter& planter) {
  const bool by_all = planter.random.chance();
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const CollectiveKind kind = collective(draft, call.members.front()).kind;
    if (call.ranks.size() < 3 ||
        (kind != CollectiveKind::all_reduce && kind != CollectiveKind::barrier)) {
      return std::nullopt;
    }
    const auto size = static_cast<std::int64_t>(call.ranks.size());
    const auto who = static_cast<std::size_t>(planter.random.between(0, size));
    const auto out = (who + 1) % call.ranks.size();
    std::vector<std::int32_t> rest = call.ranks;
    std::erase(rest, call.ranks[out]);
    Outcome outcome{.codes = {"D709"}, .marks = {call.members[who]}};
    for (std::size_t k = 0; k < call.members.size(); ++k) {
      if (k == who || (by_all && k != out)) set_group(collective(draft, call.members[k]), rest);
    }
    if (by_all) outcome.marks = call.members;
    return outcome;
  });
}

std::optional<Outcome> group_in_other_order(Draft& draft, Planter& planter) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const auto size = static_cast<std::int64_t>(call.ranks.size());
    const auto who = static_cast<std::size_t>(planter.random.between(0, size));
    std::vector<std::int32_t> ranks = call.ranks;
    std::swap(ranks[0], ranks[planter.random.between(1, size)]);
    Collective& own = collective(draft, call.members[who]);
    set_group(own, ranks);
    return found_at_member({"D709"}, call, who);
  });
}

}  // namespace shiplap::mutations
