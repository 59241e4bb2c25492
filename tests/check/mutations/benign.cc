#include "benign.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "mutations_internal.h"

namespace shiplap::mutations {
namespace {

using plan::Batch;
using plan::Collective;
using plan::Operation;
using plan::Plan;
using plan::Region;
using plan::Statement;
using MaybePlan = std::optional<Plan>;

MaybePlan rename_buffers(const Plan& unrolled, std::uint64_t seed) {
  Plan plan = unrolled;
  for (plan::Program& program : plan.programs) {
    program.name += "_renamed";
    for (plan::Buffer& buffer : program.buffers) buffer.name += "_" + std::to_string(seed % 10);
    for (std::string& stream : program.streams) stream += "_too";
  }
  return plan;
}

// ---- ranks

struct Renumbering {
  std::vector<std::int64_t> to;

  void apply(plan::Expr& rank) const { rank = to[rank.literal()]; }
  void apply(plan::Group& group) const {
    for (plan::Expr& position : group.positions) apply(position);
  }
  void apply(Operation& operation) const {
    if (auto* send = std::get_if<plan::Send>(&operation.action)) apply(send->peer.where);
    if (auto* receive = std::get_if<plan::Receive>(&operation.action)) apply(receive->peer.where);
    if (auto* call = std::get_if<Collective>(&operation.action)) apply(call->over);
    if (auto* exchange = std::get_if<plan::Exchange>(&operation.action)) apply(exchange->over);
    if (auto* batch = std::get_if<Batch>(&operation.action)) apply(batch->body);
  }
  void apply(std::vector<Statement>& body) const {
    for (Statement& statement : body) {
      if (auto* operation = std::get_if<Operation>(&statement.node)) apply(*operation);
    }
  }
  [[nodiscard]] std::vector<plan::TableRow> apply(std::span<const plan::TableRow> rows) const {
    std::vector<plan::TableRow> result(rows.begin(), rows.end());
    for (plan::TableRow& row : result) {
      row.rank = static_cast<std::int32_t>(to[row.rank]);
      row.peer = static_cast<std::int32_t>(to[row.peer]);
    }
    return result;
  }
};

MaybePlan renumber_ranks(const Plan& unrolled, std::uint64_t seed) {
  if (!unrolled.spares.empty() || unrolled.mesh.ranks() < 2) return std::nullopt;
  Renumbering ranks;
  ranks.to.resize(unrolled.mesh.ranks());
  std::iota(ranks.to.begin(), ranks.to.end(), 0);
  Random(seed).shuffle(ranks.to);
  if (std::ranges::is_sorted(ranks.to)) std::ranges::reverse(ranks.to);
  Plan plan = unrolled;
  for (plan::Program& program : plan.programs) {
    auto& position = program.on.terms.front().positions.front();
    position.first = position.last = ranks.to[position.first];
    ranks.apply(program.body);
  }
  for (plan::ExchangeTable& table : plan.tables) {
    table =
        plan::ExchangeTable(table.name, ranks.apply(table.sends()), ranks.apply(table.receives()));
  }
  return plan;
}

MaybePlan add_spares(const Plan& unrolled, std::uint64_t) {
  if (!unrolled.spares.empty()) return std::nullopt;
  const std::int64_t ranks = unrolled.mesh.ranks();
  Plan plan = unrolled;
  plan.mesh.axes.insert(plan.mesh.axes.begin(), {.name = "in_reserve", .size = 2});
  for (plan::Alias& alias : plan.mesh.aliases) {
    for (plan::AxisId& axis : alias.axes) axis = plan::AxisId(axis.value + 1);
  }
  plan.spares.push_back(
      {.terms = {{.axis = {}, .positions = {{.first = ranks, .last = 2 * ranks - 1}}}}});
  return plan;
}

// ---- order

MaybePlan reorder_computes(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    for (std::size_t k = 1; k < draft.lines(rank).size(); ++k) {
      const Line& a = draft.lines(rank)[k - 1];
      const Line& b = draft.lines(rank)[k];
      const bool computes = std::holds_alternative<plan::Compute>(a.operation->action) &&
                            std::holds_alternative<plan::Compute>(b.operation->action);
      if (!computes || a.operation->joined || b.operation->joined ||
          a.operation->stream != b.operation->stream || !a.operation->after.empty() ||
          !b.operation->after.empty() || !a.operation->name.name.empty() ||
          !b.operation->name.name.empty() || touch_each_other(draft, a.mark, b.mark)) {
        continue;
      }
      draft.move_before(b.mark, a.mark);
      changed = true;
      ++k;
    }
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

MaybePlan delay_waits(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (const Line& line : draft.all_lines()) {
    if (!std::holds_alternative<plan::Compute>(line.operation->action) ||
        !line.operation->name.name.empty() || line.operation->after.empty()) {
      continue;
    }
    const auto& lines = draft.lines(line.rank);
    const auto next = std::ranges::find_if(lines, [&](const Line& other) {
      return other.index > line.index && other.batch == 0 &&
             other.operation->stream == line.operation->stream;
    });
    if (next == lines.end()) continue;
    const auto mine = line.operation->after;
    const auto theirs = next->operation->after;
    for (const plan::Reference& reference : mine) draft.wait(next->mark, reference);
    line.operation->after.clear();
    if (races(draft, line.rank).empty()) {
      changed = true;
      continue;
    }
    line.operation->after = mine;
    next->operation->after = theirs;
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

MaybePlan add_barriers(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  Operation barrier{.action = Collective{.kind = CollectiveKind::barrier}};
  auto& call = std::get<Collective>(barrier.action);
  call.over.channel = "sync";
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    if (draft.program_of(rank) >= 0) call.over.positions.emplace_back(rank);
  }
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    if (draft.program_of(rank) < 0) continue;
    if (!draft.lines(rank).empty())
      draft.insert_before(draft.lines(rank).front().mark, barrier);
    else
      draft.append(rank, barrier);
    draft.append(rank, barrier);
  }
  return draft.plan;
}

// ---- communication in other words

MaybePlan add_groups_of_one(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (const Line& line : draft.all_lines()) {
    if (!draft.exists(line.mark)) continue;
    const Operation* operation = draft.line(line.mark).operation;
    const auto* call = std::get_if<Collective>(&operation->action);
    if (call == nullptr || call->kind != CollectiveKind::all_reduce || line.batch != 0 ||
        !same_rows(call->from, call->to)) {
      continue;
    }
    Operation alone = *operation;
    alone.async = false;
    auto& own = std::get<Collective>(alone.action);
    own.over.positions = {plan::Expr(line.rank)};
    own.scale = {};
    // Calls on one group are on one stream; these may not be.
    own.over.channel = "alone" + std::to_string(line.mark);
    draft.insert_before(line.mark, alone);
    changed = true;
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

MaybePlan scatter_and_gather(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (const Call& call : collectives(draft)) {
    const auto size = call.members.size();
    const bool fits = std::ranges::all_of(call.members, [&](Mark mark) {
      const Collective& each = collective(draft, mark);
      return each.kind == CollectiveKind::all_reduce && same_rows(each.from, each.to) &&
             each.from.count.literal() % static_cast<std::int64_t>(size) == 0 &&
             draft.line(mark).batch == 0 && !draft.line(mark).operation->async;
    });
    if (!fits) continue;
    for (std::size_t k = 0; k < size; ++k) {
      Operation scatter = *draft.line(call.members[k]).operation;
      auto& first = std::get<Collective>(scatter.action);
      first.kind = CollectiveKind::reduce_scatter;
      first.to = piece(first.from, k, size);
      draft.insert_before(call.members[k], scatter);
      Collective& second = collective(draft, call.members[k]);
      second.kind = CollectiveKind::all_gather;
      second.from = piece(second.to, k, size);
      second.scale = {};
      second.op = ReduceOp::sum;
    }
    changed = true;
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

void halve(Draft& draft, Mark mark, Region plan::Send::*) {
  Operation half = *draft.line(mark).operation;
  Region& first = std::get<plan::Send>(half.action).from;
  Region& second = std::get<plan::Send>(draft.line(mark).operation->action).from;
  first.count = 1;
  second.begin = second.begin.literal() + 1;
  second.count = second.count.literal() - 1;
  draft.insert_before(mark, half);
}

void halve(Draft& draft, Mark mark, Region plan::Receive::*) {
  Operation half = *draft.line(mark).operation;
  Region& first = std::get<plan::Receive>(half.action).to;
  Region& second = std::get<plan::Receive>(draft.line(mark).operation->action).to;
  first.count = 1;
  second.begin = second.begin.literal() + 1;
  second.count = second.count.literal() - 1;
  draft.insert_before(mark, half);
}

MaybePlan split_sends(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (const Message& message : messages(draft)) {
    const Line& send = draft.line(message.send);
    const Line& receive = draft.line(message.receive);
    const Region& from = std::get<plan::Send>(send.operation->action).from;
    const Region& to = std::get<plan::Receive>(receive.operation->action).to;
    // Messages of one key must all be cut alike.
    if (send.operation->async || receive.operation->async || from.count != to.count ||
        from.count.literal() < 2 || message.count > 1 ||
        (send.batch != 0) != (receive.batch != 0)) {
      continue;
    }
    halve(draft, message.send, &plan::Send::from);
    halve(draft, message.receive, &plan::Receive::to);
    changed = true;
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

MaybePlan pair_as_batch(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  bool changed = false;
  for (std::int32_t rank = 0; rank < draft.ranks(); ++rank) {
    for (std::size_t k = 1; k < draft.lines(rank).size(); ++k) {
      const Line a = draft.lines(rank)[k - 1];
      const Line b = draft.lines(rank)[k];
      const bool pair = std::holds_alternative<plan::Send>(a.operation->action) &&
                        std::holds_alternative<plan::Receive>(b.operation->action);
      if (!pair || a.batch != 0 || b.batch != 0 || a.operation->async || b.operation->async ||
          a.operation->stream != b.operation->stream || !b.operation->after.empty() ||
          touch_each_other(draft, a.mark, b.mark)) {
        continue;
      }
      Operation both = *b.operation;
      both.after = a.operation->after;
      Batch batch;
      for (const Line& each : {a, b}) {
        batch.body.push_back({Operation{.action = each.operation->action}});
      }
      const plan::Reference old = a.operation->name;
      both.action = std::move(batch);
      *b.operation = both;
      draft.refresh();
      for (const Line& line : draft.lines(rank)) {
        if (old.name.empty() || std::erase(line.operation->after, old) == 0) continue;
        draft.wait(line.mark, draft.name_of(b.operation->origin.line));
      }
      changed = true;
      // The send is now a member; the one before the batch goes.
      auto& body = draft.program(rank).body;
      const auto gone = std::ranges::find_if(body, [&](const Statement& statement) {
        const auto* operation = std::get_if<Operation>(&statement.node);
        return operation != nullptr && operation->origin.line == a.mark;
      });
      body.erase(gone);
      draft.refresh();
      k += 2;
    }
  }
  return changed ? MaybePlan(draft.plan) : std::nullopt;
}

MaybePlan fuse_reductions(const Plan& unrolled, std::uint64_t) {
  Draft draft(unrolled);
  const std::vector<Call> all = collectives(draft);
  for (const Call& first : all) {
    for (const Call& second : all) {
      if (first.ranks != second.ranks || first.channel != second.channel ||
          second.n != first.n + 1) {
        continue;
      }
      bool fits = true;
      for (std::size_t k = 0; k < first.members.size(); ++k) {
        const Collective& a = collective(draft, first.members[k]);
        const Collective& b = collective(draft, second.members[k]);
        fits = fits && a.kind == CollectiveKind::all_reduce && b.kind == a.kind &&
               a.scale == b.scale && same_rows(a.from, a.to) && same_rows(b.from, b.to) &&
               a.from.buffer == b.from.buffer &&
               b.from.begin.literal() + b.from.count.literal() == a.from.begin.literal() &&
               can_swap(draft, first.members[k], second.members[k]);
      }
      if (!fits) continue;
      for (std::size_t k = 0; k < first.members.size(); ++k) {
        const Region upper = collective(draft, first.members[k]).from;
        Collective& b = collective(draft, second.members[k]);
        b.from.count = b.from.count.literal() + upper.count.literal();
        b.to = b.from;
        const plan::Reference old = draft.name_of(first.members[k]);
        const plan::Reference now = draft.name_of(second.members[k]);
        const std::int32_t rank = draft.line(first.members[k]).rank;
        for (const Line& line : draft.lines(rank)) {
          if (line.index <= draft.line(second.members[k]).index) continue;
          if (std::ranges::find(line.operation->after, old) != line.operation->after.end()) {
            draft.wait(line.mark, now);
          }
        }
        draft.erase(first.members[k]);
      }
      return draft.plan;
    }
  }
  return std::nullopt;
}

}  // namespace

const std::vector<Rewrite>& all_rewrites() {
  static const std::vector<Rewrite> kAll = {
      {"rename buffers, streams and programs", rename_buffers},
      {"renumber ranks", renumber_ranks},
      {"add spares", add_spares},
      {"reorder independent computes", reorder_computes},
      {"delay waits", delay_waits},
      {"barriers on all ranks", add_barriers},
      {"groups of one", add_groups_of_one},
      {"reduce_scatter and all_gather for all_reduce", scatter_and_gather},
      {"split sends", split_sends},
      {"send and receive as a batch", pair_as_batch},
      {"fuse two all_reduces", fuse_reductions},
  };
  return kAll;
}

}  // namespace shiplap::mutations
