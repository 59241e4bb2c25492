// Bugs in time and memory: waits that are not there, rows that are used twice.
#include <algorithm>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Operation;
using plan::Reference;
using plan::Region;

namespace {

bool is_communication(const Operation& operation) {
  return !std::holds_alternative<plan::Compute>(operation.action) &&
         !std::holds_alternative<plan::Allocate>(operation.action) &&
         !std::holds_alternative<plan::Free>(operation.action) &&
         !std::holds_alternative<plan::Copy>(operation.action);
}

struct Wait {
  Mark waiting = 0;
  Mark awaited = 0;
};

std::vector<Wait> waits(const Draft& draft) {
  std::vector<Wait> found;
  for (const Line& line : draft.all_lines()) {
    for (const Line& other : draft.lines(line.rank)) {
      if (other.index >= line.index || other.operation->name.name.empty()) continue;
      if (!is_communication(*other.operation)) continue;
      if (std::ranges::find(line.operation->after, other.operation->name) !=
          line.operation->after.end()) {
        found.push_back({.waiting = line.mark, .awaited = other.mark});
      }
    }
  }
  return found;
}

// Takes the wait away, and puts it back if nothing races by it.
std::optional<Outcome> drop_wait(Draft& draft, const Wait& wait, bool arrives) {
  const Line waiting = draft.line(wait.waiting);
  const Reference name = draft.line(wait.awaited).operation->name;
  const std::vector<Reference> before = waiting.operation->after;
  std::erase(waiting.operation->after, name);
  Outcome outcome;
  for (const Race& race : races(draft, waiting.rank, wait.awaited)) {
    // Whether what is awaited writes the rows that others touch.
    bool writes = false;
    for (const Touch& touch : touches(draft, race.first)) {
      for (const Touch& other : touches(draft, race.second)) {
        writes = writes || (touch.writes && overlap(draft, touch.region, other.region));
      }
    }
    if (writes != arrives) {
      outcome.marks.clear();
      break;
    }
    outcome.marks.push_back(race.second);
    for (const char* code : {race.lifetime ? "D733" : "D730", race.both_write ? "D731" : "D730"}) {
      if (std::ranges::find(outcome.codes, code) == outcome.codes.end()) {
        outcome.codes.emplace_back(code);
      }
    }
  }
  if (!outcome.marks.empty()) return outcome;
  draft.line(wait.waiting).operation->after = before;
  return std::nullopt;
}

}  // namespace

std::optional<Outcome> drop_wait_for_receive(Draft& draft, Planter& planter) {
  return planter.any_of(waits(draft), [&](const Wait& w) { return drop_wait(draft, w, true); });
}

std::optional<Outcome> drop_wait_for_send(Draft& draft, Planter& planter) {
  return planter.any_of(waits(draft), [&](const Wait& w) { return drop_wait(draft, w, false); });
}

namespace {

Region* written_region(Operation& operation) {
  if (auto* receive = std::get_if<plan::Receive>(&operation.action)) return &receive->to;
  if (auto* call = std::get_if<plan::Collective>(&operation.action)) {
    const bool apart =
        call->kind == CollectiveKind::all_gather || call->kind == CollectiveKind::reduce_scatter;
    return apart ? &call->to : nullptr;
  }
  return nullptr;
}

}  // namespace

// The first goes on in the background while the second writes the same rows; who comes next waits
// for both.
std::optional<Outcome> two_write_one_buffer(Draft& draft, Planter& planter) {
  std::vector<Wait> pairs;  // neighbours on a stream
  for (const Line& first : draft.all_lines()) {
    if (first.batch != 0 || written_region(*first.operation) == nullptr) continue;
    for (const Line& second : draft.lines(first.rank)) {
      if (second.index <= first.index || second.batch != 0) continue;
      if (second.operation->stream != first.operation->stream) continue;
      if (written_region(*second.operation) != nullptr) {
        pairs.push_back({.waiting = second.mark, .awaited = first.mark});
      }
      break;
    }
  }
  return planter.any_of(pairs, [&](const Wait& pair) -> std::optional<Outcome> {
    const Line first = draft.line(pair.awaited);
    const Line second = draft.line(pair.waiting);
    const Region& a = *written_region(*first.operation);
    Region& b = *written_region(*second.operation);
    const auto& buffers = draft.program(first.rank).buffers;
    const plan::Buffer& x = buffers[a.buffer];
    const plan::Buffer& y = buffers[b.buffer];
    if (overlap(draft, a, b) || a.count != b.count || x.row_bytes != y.row_bytes ||
        x.type != y.type || touch_each_other(draft, first.mark, second.mark)) {
      return std::nullopt;
    }
    const plan::Program saved = draft.program(first.rank);
    std::erase(second.operation->after, first.operation->name);
    first.operation->async = true;
    b = a;
    const auto name = draft.name_of(first.mark);
    for (const Line& line : draft.lines(first.rank)) {
      if (line.index > second.index && line.batch == 0) draft.wait(line.mark, name);
    }
    // That must be all: others that used the rows would be another bug, and an order that holds in
    // spite of it would be none.
    if (races(draft, first.rank).size() != 1) {
      draft.program(first.rank) = saved;
      draft.refresh();
      return std::nullopt;
    }
    return Outcome{.codes = {"D731"}, .marks = {second.mark}};
  });
}

// A message of an exchange arrives one row too late, where another has its first row.
std::optional<Outcome> shift_shard(Draft& draft, Planter& planter) {
  struct Arrival {
    std::size_t table = 0;
    std::size_t row = 0;
  };
  std::vector<Arrival> candidates;
  for (std::size_t t = 0; t < draft.plan.tables.size(); ++t) {
    const auto receives = draft.plan.tables[t].receives();
    for (std::size_t k = 0; k < receives.size(); ++k) candidates.push_back({t, k});
  }
  return planter.any_of(candidates, [&](const Arrival& arrival) -> std::optional<Outcome> {
    const plan::ExchangeTable& table = draft.plan.tables[arrival.table];
    std::vector<plan::TableRow> receives(table.receives().begin(), table.receives().end());
    plan::TableRow& row = receives[arrival.row];
    const bool neighbour = std::ranges::any_of(receives, [&](const plan::TableRow& other) {
      return other.rank == row.rank && other.first == row.first + row.count;
    });
    if (!neighbour) return std::nullopt;
    Outcome outcome{.codes = {"D731"}};
    for (const Line& line : draft.lines(row.rank)) {
      const auto* exchange = std::get_if<plan::Exchange>(&line.operation->action);
      if (exchange != nullptr && exchange->table.index() == arrival.table && !exchange->reversed &&
          !exchange->add) {
        outcome.marks.push_back(line.mark);
      }
    }
    if (outcome.marks.empty()) return std::nullopt;
    ++row.first;
    draft.plan.tables[arrival.table] = plan::ExchangeTable(
        table.name, {table.sends().begin(), table.sends().end()}, std::move(receives));
    return outcome;
  });
}

std::optional<Outcome> free_too_early(Draft& draft, Planter& planter) {
  return planter.any_of(draft.all_lines(), [&](const Line& line) -> std::optional<Outcome> {
    const auto* free = std::get_if<plan::Free>(&line.operation->action);
    if (free == nullptr || !line.operation->after.empty() || !line.operation->name.name.empty()) {
      return std::nullopt;
    }
    for (std::int32_t k = line.index - 1; k >= 0; --k) {
      const Line other = draft.lines(line.rank)[k];
      const auto all = touches(draft, other.mark);
      const bool touched = std::ranges::any_of(
          all, [&](const Touch& touch) { return overlap(draft, touch.region, free->rows); });
      if (!touched) continue;
      const bool reads = std::ranges::any_of(all, [&](const Touch& touch) {
        return touch.reads && overlap(draft, touch.region, free->rows);
      });
      if (!reads || !is_kernel(*other.operation, "backward") ||
          other.operation->stream != line.operation->stream) {
        return std::nullopt;
      }
      draft.move_before(line.mark, other.mark);
      return Outcome{.codes = {"D733"}, .marks = {other.mark}};
    }
    return std::nullopt;
  });
}

namespace {

struct Reuse {
  std::int32_t rank = -1;
  Mark writer = 0;  // of the second
  Mark reader = 0;  // the last one of the first
  Region first;
  Region second;
};

// The rows of two microbatches that live at the same time.
std::vector<Reuse> reuses(const Draft& draft) {
  std::vector<Reuse> found;
  for (const Line& line : draft.all_lines()) {
    if (!is_kernel(*line.operation, "forward")) continue;
    const auto reads = accesses(*line.operation, plan::Access::Kind::reads);
    if (reads.empty()) continue;
    for (const Line& other : draft.lines(line.rank)) {
      if (other.index <= line.index || !is_kernel(*other.operation, "forward")) continue;
      const auto later = accesses(*other.operation, plan::Access::Kind::reads);
      const plan::Access& a = *reads.front();
      const plan::Access& b = *later.front();
      if (!same_tensor(a.value, b.value) || a.region.buffer != b.region.buffer ||
          overlap(draft, a.region, b.region) || a.region.count != b.region.count) {
        continue;
      }
      found.push_back({.rank = line.rank, .first = a.region, .second = b.region});
    }
  }
  return found;
}

void replace_rows(Operation& operation, const Region& from, const Region& to) {
  const auto change = [&](Region& region) {
    if (same_rows(region, from)) region = to;
  };
  if (auto* compute = std::get_if<plan::Compute>(&operation.action)) {
    for (plan::Access& access : compute->accesses) change(access.region);
  } else if (auto* receive = std::get_if<plan::Receive>(&operation.action)) {
    change(receive->to);
  } else if (auto* send = std::get_if<plan::Send>(&operation.action)) {
    change(send->from);
  }
}

}  // namespace

std::optional<Outcome> reuse_too_early(Draft& draft, Planter& planter) {
  return planter.any_of(reuses(draft), [&](Reuse reuse) -> std::optional<Outcome> {
    for (const Line& line : draft.lines(reuse.rank)) {
      for (const Touch& touch : touches(draft, line.mark)) {
        if (touch.lifetime && touch.region.buffer == reuse.first.buffer) return std::nullopt;
        const bool second = overlap(draft, touch.region, reuse.second);
        if (second && !same_rows(touch.region, reuse.second)) return std::nullopt;
        if (second && touch.writes && reuse.writer == 0) reuse.writer = line.mark;
        if (touch.reads && overlap(draft, touch.region, reuse.first)) reuse.reader = line.mark;
      }
    }
    if (reuse.writer == 0 || reuse.reader == 0) return std::nullopt;
    const Line& writer = draft.line(reuse.writer);
    const Line& reader = draft.line(reuse.reader);
    // On one stream, and not a write that comes before the first one's own.
    if (writer.operation->stream != reader.operation->stream || writer.index > reader.index ||
        rows_before(draft, reuse.writer, reuse.first) != Rows::written) {
      return std::nullopt;
    }
    for (const Line& line : draft.lines(reuse.rank)) {
      replace_rows(*line.operation, reuse.second, reuse.first);
    }
    return Outcome{.codes = {"D735"}, .marks = {reuse.writer}};
  });
}

}  // namespace shiplap::mutations
