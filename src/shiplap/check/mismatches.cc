#include <algorithm>

#include "shiplap/check/mismatches_internal.h"

namespace shiplap::check {
namespace {

// Checks both ends of every message of an exchange table, for one group.
class ExchangeTableChecker {
 public:
  ExchangeTableChecker(const Job& job, std::vector<Violation>& violations)
      : job_(job), violations_(violations) {}

  void check_call(const CallGroup& group, std::int64_t n) {
    for (std::size_t k = 0; k < group.members.size(); ++k) {
      const Member& member = group.members[k];
      const std::int32_t script = group.scripts[member.slot];
      here_ = {member.rank, group.calls(member.slot)[n]};
      const ScriptOp& op = job_.scripts[script][here_.operation];
      const auto& exchange = std::get<plan::Exchange>(op.source->action);
      const plan::ExchangeTable& table = job_.plan.tables[exchange.table];
      const auto sends =
          exchange.reversed ? table.receives_of(member.rank) : table.sends_of(member.rank);
      const auto receives =
          exchange.reversed ? table.sends_of(member.rank) : table.receives_of(member.rank);
      for (const plan::TableRow& row : sends) check_inside(group, row, op.from, true);
      for (const plan::TableRow& row : receives) check_inside(group, row, op.to, false);
      check_ends(exchange, table, sends, true);
      check_ends(exchange, table, receives, false);
    }
  }

 private:
  void check_inside(const CallGroup& group, const plan::TableRow& row, const RowRange& row_range,
                    bool sends) {
    const bool member = group.ranks().find(Rank(row.peer)) >= 0;
    const bool fits = row.first >= 0 && row.count >= 0 && row.count <= row_range.count &&
                      row.first <= row_range.count - row.count;
    if (member && fits) return;
    violations_.push_back({.symptom = Symptom::exchange_outside,
                           .place = here_,
                           .other = {row.peer, -1},
                           .row_range = row_range,
                           .what = sends ? "sends" : "receives",
                           .why = member ? "" : "group"});
  }

  // Every message of this rank has the other end, with the same length.
  void check_ends(const plan::Exchange& exchange, const plan::ExchangeTable& table,
                  std::span<const plan::TableRow> rows, bool sends) {
    std::size_t nth = 0;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      nth = k > 0 && rows[k].peer == rows[k - 1].peer ? nth + 1 : 0;
      const bool other_receives = sends != exchange.reversed;
      const auto others =
          other_receives ? table.receives_of(rows[k].peer) : table.sends_of(rows[k].peer);
      const auto [first, last] =
          std::ranges::equal_range(others, here_.rank, {}, &plan::TableRow::peer);
      const bool present = static_cast<std::size_t>(last - first) > nth;
      const std::int64_t count = present ? (first + static_cast<std::ptrdiff_t>(nth))->count : 0;
      if (present && count == rows[k].count) continue;
      if (!sends && present) continue;  // reported for the sender
      violations_.push_back({.symptom = Symptom::exchange_mismatch,
                             .place = here_,
                             .other = {rows[k].peer, -1},
                             .what = sends ? "sends" : "receives",
                             .why = std::to_string(rows[k].count),
                             .help = std::to_string(count)});
      return;
    }
  }

  const Job& job_;
  std::vector<Violation>& violations_;
  OperationId here_;
};

bool group_mismatches(const Job& job, const CallGroup& group) {
  if (!group.linked->complete) return true;
  for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
    if (std::ssize(group.calls(slot)) != group.linked->max_calls) return true;
  }
  const std::int32_t first = job.scripts[group.scripts.front()].rank;
  for (std::size_t slot = 1; slot < group.scripts.size(); ++slot) {
    const std::int32_t rank = job.scripts[group.scripts[slot]].rank;
    for (std::size_t n = 0; n < group.calls(slot).size(); ++n) {
      if (mismatch_between(job, {first, group.calls(0)[n]}, {rank, group.calls(slot)[n]}) !=
          MismatchKind::none) {
        return true;
      }
    }
  }
  return false;
}

bool queue_mismatches(const Job& job, const MessageQueue& key) {
  if (key.sends.size() != key.receives.size()) return true;
  for (std::size_t n = 0; n < key.sends.size(); ++n) {
    if (mismatch_between(job, {key.from, key.sends[n]}, {key.to, key.receives[n]}) !=
        MismatchKind::none)
      return true;
  }
  return false;
}

}  // namespace

Mismatches find_mismatches(const Job& job) {
  Mismatches result;
  for (std::size_t k = 0; k < job.groups.size(); ++k) {
    const CallGroup& group = job.groups[k];
    if (group_mismatches(job, group)) {
      result.groups.push_back(static_cast<std::int32_t>(k));
      continue;
    }
    ExchangeTableChecker checker(job, result.violations);
    const std::int32_t script = group.scripts.front();
    for (std::size_t n = 0; n < group.calls(0).size(); ++n) {
      const ScriptOp& op = job.scripts[script][group.calls(0)[n]];
      if (op.action == ActionKind::exchange)
        checker.check_call(group, static_cast<std::int64_t>(n));
    }
  }
  for (std::size_t k = 0; k < job.queues().size(); ++k) {
    if (queue_mismatches(job, job.queues()[k])) result.keys.push_back(static_cast<std::int32_t>(k));
  }
  return result;
}

}  // namespace shiplap::check
