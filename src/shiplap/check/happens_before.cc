// Races within a rank, by vector clocks.
//
// Problem: operations of a rank are ordered by their streams (in order) and by `after`. Two
// operations that access the same rows, one of them writing, must be ordered in every execution.
// The pairs are quadratic in number, and so is a transitive closure of the dependencies.
//
// Idea: happens-before (Lamport 1978) with one vector clock per operation (Fidge 1988; Mattern
// 1988) and one entry per stream, not per operation: the least progress of that stream when the
// operation starts. A stream's k-th operation has started at 2k+1 and is complete at 2k+2. An
// operation's clock is the maximum over the clocks of its predecessors, plus what it waits for; so
// "a is complete before b starts" is one comparison with b's entry for a's stream.
//
// Asynchronous operations do not fit this: the next operation of the stream starts while they are
// in flight, so a position in the stream does not determine their completion. They are complete
// only where some operation waited for them (`after`). Each keeps a list of its waiters, and is
// complete before b if one of the waiters has started before b starts. A member of a batch has the
// order of its batch.
//
// Races (compare FastTrack, Flanagan and Freund 2009): the operations are visited once, in program
// order. For each range of rows the last writer and the readers since then are kept. A reader that
// is complete before the next reader starts is dropped, because any later write that is ordered
// after the latter is ordered after the former. The list of readers is pruned whenever it has
// doubled, which keeps the whole linear in practice.
//
// Operations that are matched by order (messages with one key, calls on one group) need less: each
// must have started before the next one starts.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/happens_before_internal.h"
#include "shiplap/check/interval_map_internal.h"

namespace shiplap::check {

HappensBefore::HappensBefore(const plan::RankTemplate& steps)
    : steps_(steps), streams_(steps.heads.size()) {
  const std::size_t count = steps.steps.size();
  clocks_.assign(count * streams_, 0);
  position_.assign(count, 0);
  first_waiter_.assign(count, -1);
  std::vector<std::int32_t> length(streams_);
  for (std::size_t k = 0; k < count; ++k) {
    throw_if_cancelled();
    const plan::Step& op = steps.steps[k];
    if (op.member) continue;  // it has the order of its batch
    const auto stream = static_cast<std::size_t>(op.stream);
    position_[k] = length[stream]++;
    if (op.predecessor >= 0) join_clock(k, op.predecessor);
    for (const std::int32_t dependency : steps.after_of(op)) {
      const std::int32_t earlier = owning_step(dependency);
      join_clock(k, earlier);
      const plan::Step& awaited = steps[earlier];
      if (awaited.source->async) {
        next_waiter_.push_back(first_waiter_[earlier]);
        first_waiter_[earlier] = static_cast<std::int32_t>(waiters_.size());
        waiters_.push_back({earlier, op.stream, position_[k]});
        continue;
      }
      const std::int32_t done = 2 * position_[earlier] + 2;
      std::int32_t& clock = clocks_[k * streams_ + static_cast<std::size_t>(awaited.stream)];
      clock = std::max(clock, done);
    }
    clocks_[k * streams_ + stream] = 2 * position_[k] + 1;
  }
}

void HappensBefore::join_clock(std::size_t into, std::int32_t from) {
  for (std::size_t s = 0; s < streams_; ++s) {
    std::int32_t& clock = clocks_[into * streams_ + s];
    clock = std::max(clock, clock_of(from, static_cast<std::int32_t>(s)));
  }
}

bool HappensBefore::complete_before(std::int32_t earlier, std::int32_t later) const {
  const std::int32_t a = owning_step(earlier);
  const std::int32_t b = owning_step(later);
  if (a == b) return false;
  const plan::Step& op = steps_[a];
  if (!op.source->async) return clock_of(b, op.stream) >= 2 * position_[a] + 2;
  for (std::int32_t k = first_waiter_[a]; k >= 0; k = next_waiter_[k]) {
    const Waiter& waiter = waiters_[k];
    if (clock_of(b, waiter.stream) >= 2 * waiter.position + 1) return true;
  }
  return false;
}

bool HappensBefore::started_before(std::int32_t earlier, std::int32_t later) const {
  const std::int32_t a = owning_step(earlier);
  const std::int32_t b = owning_step(later);
  if (a == b) return true;
  return clock_of(b, steps_[a].stream) >= 2 * position_[a] + 1;
}

namespace {

// The last accesses to a row.
struct LastAccesses {
  std::int32_t writer = -1;
  std::int32_t reader = -1;
  std::vector<std::int32_t> readers;  // further ones; some may be complete before later ones
  std::size_t prune_at = 8;           // readers
  void skip(std::int32_t) {}
};

class RaceDetector {
 public:
  RaceDetector(const Script& script, std::vector<Violation>& violations)
      : script_(script), order_(*script.steps), violations_(violations) {
    for (const std::int32_t rows : script.rows) buffers_.emplace_back(rows, LastAccesses{});
  }

  std::int64_t find() {
    for (std::size_t k = 0; k < script_.ops.size(); ++k) {
      throw_if_cancelled();
      op_ = static_cast<std::int32_t>(k);
      const ScriptOp& op = script_.ops[k];
      for (const Assertion& assertion : script_.assertions_of(op)) {
        if (assertion.kind == plan::Access::Kind::reads) access(assertion.row_range, false);
      }
      for (const Assertion& assertion : script_.assertions_of(op)) {
        if (assertion.kind != plan::Access::Kind::reads) access(assertion.row_range, true);
      }
      const bool lives = op.action == ActionKind::allocate || op.action == ActionKind::free;
      access(op.from, lives || op.clobbers_input);
      if (!op.leaves_output) access(op.to, true);
      check_key_order(op);
    }
    return access_count_;
  }

 private:
  void access(const RowRange& row_range, bool writes) {
    if (!row_range.exists()) return;
    ++access_count_;
    if (row_range.listed < 0) return access(row_range, row_range.begin, row_range.end(), writes);
    for (const std::int32_t row : script_.rows_of(row_range))
      access(row_range, row, row + 1, writes);
  }

  void access(const RowRange& row_range, std::int32_t begin, std::int32_t end, bool writes) {
    if (begin == end) return;
    IntervalMap<LastAccesses>& rows = buffers_[row_range.buffer];
    rows.change(begin, end, [&](IntervalMap<LastAccesses>::Range& range) {
      LastAccesses& accesses = range.value;
      const std::int32_t row = range.begin;
      report_unordered(accesses.writer, row_range, row,
                       writes ? Symptom::race_write : Symptom::race_read);
      if (!writes) return read(accesses);
      report_unordered(accesses.reader, row_range, row, Symptom::race_read);
      for (const std::int32_t reader : accesses.readers)
        report_unordered(reader, row_range, row, Symptom::race_read);
      accesses.writer = op_;
      accesses.reader = -1;
      accesses.readers.clear();
      accesses.prune_at = 8;
    });
  }

  // A reader that is complete before this one starts is dropped: an operation that is ordered after
  // this one is ordered after that one, too.
  void read(LastAccesses& accesses) {
    if (accesses.reader == op_) return;
    if (accesses.reader < 0 || order_.complete_before(accesses.reader, op_)) {
      accesses.reader = op_;
      return;
    }
    if (!accesses.readers.empty() && accesses.readers.back() == op_) return;
    if (accesses.readers.size() >= accesses.prune_at) {  // each time twice as many: amortized
      std::erase_if(accesses.readers,
                    [&](std::int32_t reader) { return order_.complete_before(reader, op_); });
      accesses.prune_at = std::max<std::size_t>(8, 2 * accesses.readers.size());
    }
    accesses.readers.push_back(op_);
  }

  void report_unordered(std::int32_t earlier, const RowRange& row_range, std::int32_t row,
                        Symptom symptom) {
    if (earlier < 0 || earlier == op_ || order_.complete_before(earlier, op_)) return;
    if (!reported_.emplace(earlier, op_).second) return;
    violations_.push_back({.symptom = symptom,
                           .place = {script_.rank, op_},
                           .other = {script_.rank, earlier},
                           .row_range = row_range,
                           .first_row = row});
  }

  void check_key_order(const ScriptOp& op) {
    const bool is_collective = plan::is_call(op.action);
    if (!plan::is_message(op.action) && !is_collective) return;
    std::int32_t* last = nullptr;
    if (is_collective) {
      last = &calls_.try_emplace(op.match.with, -1).first->second;
    } else {
      const auto n = std::tuple(op.action == ActionKind::send, op.match.with);
      last = &messages_.try_emplace(n, -1).first->second;
    }
    if (*last >= 0 && !order_.started_before(*last, op_)) {
      violations_.push_back({.symptom = Symptom::unordered,
                             .place = {script_.rank, op_},
                             .other = {script_.rank, *last}});
    }
    *last = op_;
  }

  const Script& script_;
  HappensBefore order_;
  std::vector<Violation>& violations_;
  std::vector<IntervalMap<LastAccesses>> buffers_;
  std::set<std::pair<std::int32_t, std::int32_t>> reported_;
  std::map<std::int32_t, std::int32_t> calls_;                       // by group
  std::map<std::tuple<bool, std::int32_t>, std::int32_t> messages_;  // by key
  std::int32_t op_ = 0;
  std::int64_t access_count_ = 0;
};

}  // namespace

std::int64_t find_races(const Script& script, std::vector<Violation>& violations) {
  return RaceDetector(script, violations).find();
}

}  // namespace shiplap::check
