// Bugs in where tokens go: around a ring, to experts and back.
#include <algorithm>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Exchange;
using plan::Operation;
using plan::Value;

namespace {

// Steps of attention that add to what is there.
std::vector<Line> ring_steps(const Draft& draft) {
  std::vector<Line> found = draft.all_lines();
  std::erase_if(found, [](const Line& line) {
    return !is_kernel(*line.operation, "attention") ||
           accesses(*line.operation, Access::Kind::adds).empty();
  });
  return found;
}

}  // namespace

std::optional<Outcome> drop_ring_step(Draft& draft, Planter& planter) {
  return planter.any_of(ring_steps(draft), [&](const Line& line) -> std::optional<Outcome> {
    const Value value = accesses(*line.operation, Access::Kind::adds).front()->value;
    Outcome outcome{.codes = {"D741"}, .ranks = {line.rank}};
    for (const Mark mark : readers_after(draft, value, {line.mark}).marks) {
      if (draft.line(mark).rank == line.rank) outcome.marks.push_back(mark);
    }
    draft.erase(line.mark);
    return outcome;
  });
}

std::optional<Outcome> repeat_ring_step(Draft& draft, Planter& planter) {
  return planter.any_of(ring_steps(draft), [&](const Line& line) -> std::optional<Outcome> {
    draft.insert_before(line.mark, *line.operation);
    return Outcome{.codes = {"D742"}, .marks = {line.mark}};
  });
}

std::optional<Outcome> ring_in_other_direction(Draft& draft, Planter& planter) {
  if (draft.ranks() < 3) return std::nullopt;
  return planter.any_of(draft.all_lines(), [&](const Line& line) -> std::optional<Outcome> {
    auto* batch = std::get_if<plan::Batch>(&line.operation->action);
    if (batch == nullptr || batch->body.size() != 2) return std::nullopt;
    auto* a = std::get_if<Operation>(&batch->body[0].node);
    auto* b = std::get_if<Operation>(&batch->body[1].node);
    auto* send = std::get_if<plan::Send>(&a->action);
    auto* receive = std::get_if<plan::Receive>(&b->action);
    if (send == nullptr || receive == nullptr || send->peer == receive->peer) return std::nullopt;
    std::swap(send->peer, receive->peer);
    Outcome outcome{.codes = {"D713"}, .marks = {a->origin.line, b->origin.line}};
    // Of several messages with the same peer the last is the odd one: they are alike.
    for (const Line& other : draft.all_lines()) {
      auto* const more = std::get_if<plan::Batch>(&other.operation->action);
      if (more == nullptr || more->body.size() != 2 || other.rank != line.rank) continue;
      const auto* const last = std::get_if<Operation>(&more->body[1].node);
      const auto* const from = std::get_if<plan::Receive>(&last->action);
      if (from != nullptr && from->peer == receive->peer)
        outcome.marks.push_back(last->origin.line);
    }
    return outcome;
  });
}

namespace {

// The keys of a rank are in the opposite order.
std::optional<Outcome> swap_given_chunks(Draft& draft, Planter& planter) {
  const auto rank = static_cast<std::int32_t>(planter.random.between(0, draft.ranks()));
  for (plan::Fact* fact : draft.facts(rank, plan::Fact::Kind::given)) {
    auto& runs = fact->value.runs;
    if (tensor_of(draft, fact->value).kind != "KeyValue" || runs.size() != 2) continue;
    std::swap(runs[0], runs[1]);
    return found_by({"D744"}, readers(draft, fact->value));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Outcome> swap_chunks(Draft& draft, Planter& planter) {
  if (ring_steps(draft).empty()) return std::nullopt;
  if (planter.random.chance()) return swap_given_chunks(draft, planter);
  return planter.any_of(ring_steps(draft), [&](const Line& line) -> std::optional<Outcome> {
    auto& all = std::get<plan::Compute>(line.operation->action).accesses;
    for (Access& read : all) {
      const plan::Tensor& tensor = tensor_of(draft, read.value);
      // A step that needs only the first of the two chunks takes the second.
      if (read.kind != Access::Kind::reads || tensor.kind != "KeyValue") continue;
      if (read.value.runs.size() != 1) continue;
      const plan::Run old = read.value.runs.front();
      plan::Run other = old;
      other.begin = tensor.part.front().size - old.begin.literal() - old.count.literal();
      read.region.begin = read.region.begin.literal() + read.region.count.literal();
      read.value.runs.front() = other;
      for (Access& added : all) {
        if (added.kind != Access::Kind::adds) continue;
        for (plan::Run& run : added.value.runs) {
          if (!tensor_of(draft, added.value).in_sum(run.dimension)) continue;
          run.begin = other.begin;
        }
      }
      return Outcome{.codes = {"D741", "D742"}, .marks = {line.mark}, .ranks = {line.rank}};
    }
    return std::nullopt;
  });
}

std::optional<Outcome> drop_combine(Draft& draft, Planter& planter) {
  std::vector<Call> all = calls(draft);
  return planter.any_of(all, [&](const Call& call) -> std::optional<Outcome> {
    const auto* exchange =
        std::get_if<Exchange>(&draft.line(call.members.front()).operation->action);
    if (exchange == nullptr || !exchange->reversed || exchange->add || call.ranks.size() < 2) {
      return std::nullopt;
    }
    const Value* content_there = nullptr;
    for (const Mark mark : call.members) {
      if (content_there != nullptr) break;
      const auto& each = std::get<Exchange>(draft.line(mark).operation->action);
      content_there = content(draft, mark, each.from);
    }
    if (content_there == nullptr) return std::nullopt;
    const Value value = *content_there;
    const Readers found = readers_after(draft, value, call.members);
    if (!found.any()) return std::nullopt;
    // What the readers find depends on what lay there before.
    Codes codes = {"D756"};
    const Mark front = call.members.front();
    const auto before = codes_of_early_read(
        draft, front, std::get<Exchange>(draft.line(front).operation->action).to);
    codes.insert(codes.end(), before.begin(), before.end());
    Outcome outcome = found_by(codes, found);
    // Copies on the way may be the first to see that nothing is there.
    for (const Mark mark : call.members) {
      const Line& line = draft.line(mark);
      const auto& to = std::get<Exchange>(line.operation->action).to;
      for (const Line& other : draft.lines(line.rank)) {
        if (other.index <= line.index) continue;
        for (const Touch& touch : touches(draft, other.mark)) {
          if (touch.reads && overlap(draft, touch.region, to)) outcome.marks.push_back(other.mark);
        }
      }
    }
    for (const Mark mark : call.members) draft.erase(mark);
    return outcome;
  });
}

std::optional<Outcome> asymmetric_split(Draft& draft, Planter& planter) {
  struct Arrival {
    std::size_t table = 0;
    std::size_t row = 0;
  };
  std::vector<Arrival> candidates;
  for (std::size_t t = 0; t < draft.plan.tables.size(); ++t) {
    const auto receives = draft.plan.tables[t].receives();
    for (std::size_t k = 0; k < receives.size(); ++k) {
      if (receives[k].count > 1) candidates.push_back({t, k});
    }
  }
  return planter.any_of(candidates, [&](const Arrival& arrival) -> std::optional<Outcome> {
    const plan::ExchangeTable& table = draft.plan.tables[arrival.table];
    std::vector<plan::TableRow> receives(table.receives().begin(), table.receives().end());
    plan::TableRow& row = receives[arrival.row];
    Outcome outcome{.codes = {"D717"}};
    for (const Line& line : draft.all_lines()) {
      const auto* exchange = std::get_if<Exchange>(&line.operation->action);
      if (exchange != nullptr && exchange->table.index() == arrival.table &&
          (line.rank == row.rank || line.rank == row.peer)) {
        outcome.marks.push_back(line.mark);
      }
    }
    if (outcome.marks.empty()) return std::nullopt;
    --row.count;
    draft.plan.tables[arrival.table] = plan::ExchangeTable(
        table.name, {table.sends().begin(), table.sends().end()}, std::move(receives));
    return outcome;
  });
}

}  // namespace shiplap::mutations
