// Bugs in what is sharded: weights not gathered, shards not updated, gradients reduced too early,
// not at all, or at the wrong scale.
#include <algorithm>
#include <utility>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Collective;
using plan::Compute;
using plan::Value;

namespace {

std::vector<Call> gathers_of_weights(const Draft& draft, bool is_new) {
  std::vector<Call> all = collectives(draft);
  std::erase_if(all, [&](const Call& call) {
    const Collective& first = collective(draft, call.members.front());
    if (first.kind != CollectiveKind::all_gather) return true;
    const Value* value = content(draft, call.members.front(), first.from);
    return value == nullptr || tensor_of(draft, *value).kind != plan::kWeight ||
           value->is_new != is_new;
  });
  return all;
}

// The position of its own piece in the gathered rows.
void keep_own_piece(Draft& draft, const Call& call) {
  for (std::size_t k = 0; k < call.members.size(); ++k) {
    const Collective old = collective(draft, call.members[k]);
    if (overlap(draft, old.from, old.to)) {
      draft.erase(call.members[k]);
    } else {
      draft.line(call.members[k]).operation->action =
          plan::Copy{.from = old.from, .to = piece(old.to, k, call.members.size())};
    }
  }
}

}  // namespace

std::optional<Outcome> drop_weight_gather(Draft& draft, Planter& planter) {
  const auto candidates = gathers_of_weights(draft, false);
  return planter.any_of(candidates, [&](const Call& call) -> std::optional<Outcome> {
    const Collective& first = collective(draft, call.members.front());
    const Value value = *content(draft, call.members.front(), first.from);
    const auto before = rows_before(draft, call.members.front(), piece(first.to, 1, 2));
    if (!overlap(draft, first.from, first.to) && before == Rows::written) return std::nullopt;
    // The first one of its layer: else it could have been kept instead.
    const bool earlier = std::ranges::any_of(candidates, [&](const Call& other) {
      const Mark mark = other.members.front();
      const Value* there = content(draft, mark, collective(draft, mark).from);
      return draft.line(mark).rank == draft.line(call.members.front()).rank &&
             draft.line(mark).index < draft.line(call.members.front()).index &&
             same_tensor(*there, value);
    });
    const Readers found = readers_after(draft, value, call.members);
    if (found.marks.empty() || earlier) return std::nullopt;
    keep_own_piece(draft, call);
    return Outcome{.codes = {"D747", "D732"}, .marks = found.marks};
  });
}

std::optional<Outcome> drop_final_gather(Draft& draft, Planter& planter) {
  const auto candidates = gathers_of_weights(draft, true);
  return planter.any_of(candidates, [&](const Call& call) -> std::optional<Outcome> {
    for (const Mark mark : call.members) draft.erase(mark);
    return Outcome{.codes = {"D748"}, .ranks = call.ranks};
  });
}

namespace {

// The one dimension of which an update has a single coordinate, in all its values.
std::optional<std::int64_t> shard_of(const Draft& draft, const Compute& update) {
  std::optional<std::int64_t> shard;
  for (const Access& access : update.accesses) {
    const auto part = std::ranges::count_if(access.value.runs, [&](const plan::Run& run) {
      return !tensor_of(draft, access.value).in_sum(run.dimension);
    });
    if (part != 1 || access.value.runs.front().count != plan::Expr(1)) return std::nullopt;
    if (access.region.count != plan::Expr(1)) return std::nullopt;
    shard = access.value.runs.front().begin.literal();
  }
  return shard;
}

// The neighbour's rows and shard, if it has them whole.
bool update_neighbour(const Draft& draft, const Line& line) {
  auto& update = std::get<Compute>(line.operation->action);
  const auto shard = shard_of(draft, update);
  if (!shard) return false;
  const std::int64_t other = *shard > 0 ? *shard - 1 : *shard + 1;
  Compute changed = update;
  for (Access& access : changed.accesses) {
    const plan::Tensor& tensor = tensor_of(draft, access.value);
    if (other >= tensor.part.front().size || access.region.begin.literal() + other - *shard < 0) {
      return false;
    }
    access.region.begin = access.region.begin.literal() + other - *shard;
    access.value.runs.front().begin = other;
    const Value* there = content(draft, line.mark, access.region);
    if (there == nullptr || !same_tensor(*there, access.value) ||
        rows_before(draft, line.mark, access.region) != Rows::written) {
      return false;
    }
    // The weights of all ranks, not the shard of another layer in these rows.
    if (!there->runs.empty() && there->runs.front().count == plan::Expr(1)) return false;
  }
  update = std::move(changed);
  return true;
}

}  // namespace

std::optional<Outcome> other_shard_updated(Draft& draft, Planter& planter) {
  const bool none = planter.random.chance();
  return planter.any_of(draft.all_lines(), [&](const Line& line) -> std::optional<Outcome> {
    if (!is_kernel(*line.operation, "update")) return std::nullopt;
    const auto writes = accesses(*line.operation, Access::Kind::writes);
    const Readers found = readers(draft, writes.front()->value);
    if (!none) {
      if (!update_neighbour(draft, line)) return std::nullopt;
      return Outcome{.codes = {"D749", "D748"}, .marks = {line.mark}, .ranks = found.goals};
    }
    // A whole weight that many update is wrong on one rank only, which is another bug.
    if (!shard_of(draft, std::get<Compute>(line.operation->action))) return std::nullopt;
    const bool gathered = std::ranges::any_of(gathers_of_weights(draft, true), [&](const Call& c) {
      return std::ranges::find(c.ranks, line.rank) != c.ranks.end();
    });
    draft.erase(line.mark);
    return Outcome{.codes = {"D748"},
                   .ranks = gathered ? found.goals : std::vector<std::int32_t>{line.rank}};
  });
}

namespace {

// The last operation before `mark` that adds to these rows, if another contributed before.
Mark last_addition(const Draft& draft, Mark mark, const plan::Region& region) {
  const Line& end = draft.line(mark);
  Mark last = 0;
  int contributions = 0;
  for (const Line& line : draft.lines(end.rank)) {
    if (line.index >= end.index) break;
    const auto* compute = std::get_if<Compute>(&line.operation->action);
    if (compute == nullptr) continue;
    for (const Access& access : compute->accesses) {
      if (access.kind == Access::Kind::reads || !overlap(draft, access.region, region)) continue;
      if (access.value.sum == plan::Sum::none) continue;
      ++contributions;
      last = access.kind == Access::Kind::adds ? line.mark : 0;
    }
  }
  return contributions > 1 ? last : 0;
}

}  // namespace

std::optional<Outcome> reduce_before_last_microbatch(Draft& draft, Planter& planter) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const Collective& first = collective(draft, call.members.front());
    if (first.kind != CollectiveKind::all_reduce || first.scale != plan::Ratio()) {
      return std::nullopt;
    }
    const Value* value = content(draft, call.members.front(), first.from);
    if (value == nullptr || !is_gradient(draft, *value)) return std::nullopt;
    const Readers found = readers_after(draft, *value, call.members);
    std::vector<Mark> last;
    for (const Mark mark : call.members) {
      const Mark addition = last_addition(draft, mark, collective(draft, mark).from);
      if (addition == 0 ||
          draft.line(addition).operation->stream != draft.line(mark).operation->stream) {
        return std::nullopt;
      }
      // Other calls of the group must not be overtaken.
      const auto& lines = draft.lines(draft.line(mark).rank);
      for (std::int32_t k = draft.line(addition).index; k < draft.line(mark).index; ++k) {
        const auto& action = lines[k].operation->action;
        if (std::holds_alternative<Collective>(action)) return std::nullopt;
      }
      last.push_back(addition);
    }
    for (std::size_t k = 0; k < call.members.size(); ++k) {
      draft.line(call.members[k]).operation->after.clear();
      draft.move_before(call.members[k], last[k]);
    }
    return Outcome{.codes = {"D741"}, .marks = found.marks};
  });
}

std::optional<Outcome> other_scale(Draft& draft, Planter& planter) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const Collective& first = collective(draft, call.members.front());
    if (first.kind != CollectiveKind::all_reduce && first.kind != CollectiveKind::reduce_scatter) {
      return std::nullopt;
    }
    const Value* value = content(draft, call.members.front(), first.from);
    if (value == nullptr || !is_gradient(draft, *value)) return std::nullopt;
    const Readers found = readers_after(draft, *value, call.members);
    if (found.marks.empty()) return std::nullopt;
    plan::Ratio scale(1, static_cast<std::int64_t>(call.ranks.size()));
    if (first.scale != plan::Ratio()) {
      scale = planter.random.chance()
                  ? plan::Ratio()
                  : plan::Ratio(1, first.scale.denominator() * first.scale.denominator());
    }
    Outcome outcome{.codes = {"D745"}, .marks = found.marks};
    // The next reduction may be the first to see it.
    const Value gradient = *value;
    for (const Call& other : collectives(draft)) {
      const Mark front = other.members.front();
      const Value* there = content(draft, front, collective(draft, front).from);
      if (other.members == call.members || there == nullptr || !same_tensor(*there, gradient)) {
        continue;
      }
      outcome.marks.insert(outcome.marks.end(), other.members.begin(), other.members.end());
    }
    for (const Mark mark : call.members) collective(draft, mark).scale = scale;
    return outcome;
  });
}

namespace {

std::optional<Outcome> drop_named(Draft& draft, Planter& planter, std::string_view name) {
  return planter.any_of(collectives(draft), [&](const Call& call) -> std::optional<Outcome> {
    const Mark front = call.members.front();
    if (draft.line(front).operation->name.name != name) return std::nullopt;
    const Value* value = content(draft, front, collective(draft, front).from);
    if (value == nullptr) return std::nullopt;
    const Readers found = readers_after(draft, *value, call.members);
    for (const Mark mark : call.members) draft.erase(mark);
    return Outcome{.codes = {"D741"}, .marks = found.marks};
  });
}

}  // namespace

std::optional<Outcome> drop_tied_reduction(Draft& draft, Planter& planter) {
  return drop_named(draft, planter, "tied");
}

std::optional<Outcome> drop_norm_reduction(Draft& draft, Planter& planter) {
  return drop_named(draft, planter, "norm_sum");
}

}  // namespace shiplap::mutations
