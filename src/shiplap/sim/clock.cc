// Times of a linked program: a longest-path computation over the dependence graph of all ranks.
//
// Problem: given how long each operation takes, when does each of them start and complete, on
// every rank of a mesh with up to millions of operations?
//
// Idea: the start of an operation is the maximum of the times of its dependencies: the completion
// (or, after an asynchronous operation, the start) of its predecessor in the stream, and the
// completion of every operation that it names after `after`. A collective begins at the maximum of
// the starts of its members, a message at the maximum of the starts of its two ends. Maxima do not
// depend on the order in which they are taken, and matching is fixed (plan/matching.h). So this is
// not a discrete-event simulation with a queue sorted by time: operations are processed in any
// topological order, as in Kahn's algorithm (A. B. Kahn, "Topological sorting of large networks",
// CACM 1962) with the recurrence of the critical path method. It takes time linear in operations
// and dependencies.
//
// Invariants:
// - pending_[i] counts the unmet dependencies of operation i; it starts when the count drops to 0,
//   and then time_[i] is final. Of a started batch, pending_ counts the incomplete members, and
//   time_ becomes its end.
// - Each operation starts at most once and completes at most once. An operation is in ready_ only
//   while pending_ is 0 and it waits.
// - An eager send completes when it starts. Its receive still waits for both ends.
// - If operations remain when ready_ is empty, they are deadlocked: each of them waits, directly or
//   not, for a cycle or for an operation that does not exist (deadlock_report.cc).
//
// Computations do not slow each other down, and unless links are shared, transfers do not either: a
// duration depends on the operation alone. docs/simulate.md states the rules of time.
//
// With one hardware queue, the start of an operation also waits for the start of the one before it
// in program order, on whatever stream.
//
// If links are shared, the duration of a transfer depends on what else is under way, so operations
// run in the order of time: a discrete-event simulation of two queues, the operations that are
// ready and the events of the flows (flows.cc). An operation with a cost of its own still completes
// when it starts, which makes its successors ready at a later time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/sim/clock_internal.h"

namespace shiplap::sim {
namespace {

constexpr std::int64_t kProgressInterval = 65'536;

}  // namespace

Clock::Clock(LinkedProgram& linked, const ReplayOptions& options)
    : linked_(linked),
      system_(options.system),
      eager_(options.eager_limit),
      one_queue_(options.one_queue),
      time_(linked.matches.size()),
      state_(linked.matches.size()),
      calls_(linked.matching.calls) {
  if (options.shares_links) {
    links_ = std::make_unique<SharedLinks>(linked, options.system, options.slow_links);
  }
  for (const GroupCalls& group : linked.matching.groups)
    rank_spans_.push_back(cost::rank_span(group.ranks, system_));
  pending_.reserve(linked.matches.size());
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    if (!linked.is_linked(rank)) continue;
    const std::vector<std::int32_t>& in_degree =
        linked.template_of(static_cast<std::int32_t>(rank)).in_degree;
    pending_.insert(pending_.end(), in_degree.begin(), in_degree.end());
  }
  if (one_queue_) make_queues();
}

// What occupies a hardware queue. A batch is one kernel.
bool Clock::is_queued(const Step& step) { return !plan::is_lifetime(step.action) && !step.member; }

// The operation after this one in the queue of its rank, or none.
OperationId Clock::next_in_queue(OperationId id) const {
  const RankTemplate& rank_template = linked_.template_of(id.rank);
  for (++id.operation; id.operation < std::ssize(rank_template.steps); ++id.operation) {
    if (is_queued(rank_template[id.operation])) return id;
  }
  return {};
}

void Clock::make_queues() {
  for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    OperationId id = next_in_queue({static_cast<std::int32_t>(rank), -1});
    while (id.exists()) {
      id = next_in_queue(id);
      if (id.exists()) ++pending_[linked_.index(id)];
    }
  }
}

OperationId Clock::head_of_queue(std::int32_t rank) const {
  if (!one_queue_) return {};
  OperationId id = next_in_queue({rank, -1});
  while (id.exists() && state(id) != OperationState::waiting) id = next_in_queue(id);
  return id;
}

void Clock::run(const ProgressCallback& progress) {
  ProgressTicker ticker(
      progress, {.what = "replaying operations", .unit = "operations", .total = std::ssize(state_)},
      kProgressInterval);
  if (links_) return run_by_time(ticker);
  run_in_any_order(ticker);
}

void Clock::run_in_any_order(ProgressTicker& ticker) {
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    const auto count = std::ssize(linked_.template_of(static_cast<std::int32_t>(rank)).steps);
    for (std::int32_t k = 0; k < count; ++k, ++at) {
      // It may have run already, released by an earlier operation.
      const bool free = pending_[at] == 0 && state_[at] == OperationState::waiting;
      if (free) ready_.push_back({static_cast<std::int32_t>(rank), k});
      while (!ready_.empty()) {
        const OperationId id = ready_.back();
        ready_.pop_back();
        begin(id);
        ticker.advance_to(complete_);
      }
    }
  }
}

void Clock::run_by_time(ProgressTicker& ticker) {
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    const auto count = std::ssize(linked_.template_of(static_cast<std::int32_t>(rank)).steps);
    for (std::int32_t k = 0; k < count; ++k, ++at) {
      if (pending_[at] == 0) make_ready({static_cast<std::int32_t>(rank), k});
    }
  }
  Flows& flows = links_->flows();
  for (;;) {
    throw_if_cancelled();
    const double next = flows.next_event();
    if (!ready_.empty() && time_[linked_.index(ready_.front())] <= next) {
      begin(take_ready());
    } else if (next < std::numeric_limits<double>::infinity()) {
      end_transit(flows.advance());
    } else {
      return;
    }
    ticker.advance_to(complete_);
  }
}

bool Clock::is_later(OperationId a, OperationId b) const {
  const double x = time_[linked_.index(a)];
  const double y = time_[linked_.index(b)];
  return x != y ? x > y : a > b;
}

void Clock::make_ready(OperationId id) {
  ready_.push_back(id);
  if (!links_) return;
  std::ranges::push_heap(ready_, [&](OperationId a, OperationId b) { return is_later(a, b); });
}

OperationId Clock::take_ready() {
  std::ranges::pop_heap(ready_, [&](OperationId a, OperationId b) { return is_later(a, b); });
  const OperationId id = ready_.back();
  ready_.pop_back();
  return id;
}

void Clock::start_transit(const Transfer& transfer, const Transit& transit) {
  const std::int32_t flow = links_->flows().start(transit.begin, transfer.uses, transfer.size);
  if (std::cmp_greater_equal(flow, transits_.size())) transits_.resize(at(flow) + 1);
  transits_[flow] = transit;
}

void Clock::end_transit(const Flows::End& end) {
  if (end.flow < 0) return;
  const Transit transit = transits_[end.flow];
  // Rounded up: what follows must not start before `end.time`.
  double duration = end.time - transit.begin;
  if (transit.begin + duration < end.time) {
    duration = std::nextafter(duration, std::numeric_limits<double>::infinity());
  }
  if (transit.receive.exists()) {
    if (transit.send.exists()) finish(transit.send, transit.begin, duration);
    finish(transit.receive, transit.begin, duration);
    return;
  }
  const GroupCalls& group = linked_.matching.groups[transit.call.with];
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    finish(group.call(slot, transit.call.n), transit.begin, duration);
  }
}

void Clock::begin(OperationId id) {
  const std::size_t index = linked_.index(id);
  const double time = time_[index];
  const RankTemplate& rank_template = linked_.template_of(id.rank);
  const Step& step = rank_template[id.operation];
  state_[index] = OperationState::started;
  if (step.action == ActionKind::batch) pending_[index] = static_cast<std::int32_t>(step.detail);
  const Releases& releases = rank_template.releases[id.operation];
  release(id.rank, releases.first, releases.at_end, time);
  if (one_queue_ && is_queued(step)) {
    const OperationId next = next_in_queue(id);
    if (next.exists()) meet_dependency(next, time);
  }
  switch (step.action) {
    case ActionKind::compute:
    case ActionKind::copy:
    case ActionKind::allocate:
    case ActionKind::free:
      return finish(id, time, step.cost);
    case ActionKind::batch:
      if (step.detail == 0) finish(id, time, 0);
      return;
    case ActionKind::send:
    case ActionKind::receive:
      return begin_message(id, step);
    case ActionKind::collective:
    case ActionKind::exchange:
      return begin_call(id);
  }
}

void Clock::begin_message(OperationId id, const Step& step) {
  const bool sends = step.action == ActionKind::send;
  const OperationId other = linked_.other_end(id);
  const OperationId send = sends ? id : other;
  const OperationId receive = sends ? other : id;
  const auto is_eager = [&](const Step& sent) {
    return eager_.count > 0 && sent.bytes <= eager_.count;
  };
  if (sends && is_eager(step)) finish(id, start(id).value, 0);
  if (!other.exists() || state(other) == OperationState::waiting) return;

  const Step& sent = linked_.step(send);
  if (!compatible(*linked_.plan, sent, linked_.step(receive)))
    mismatches_.push_back({send, receive});
  const double time = std::max(start(send), start(receive)).value;
  if (links_) {
    return start_transit(links_->message({sent.bytes}, send.rank, receive.rank),
                         {.send = is_eager(sent) ? OperationId{} : send,
                          .receive = receive,
                          .call = {},
                          .begin = time});
  }
  const double duration =
      cost::message_time(system_, {sent.bytes}, Rank(send.rank), Rank(receive.rank)).value;
  if (!is_eager(sent)) finish(send, time, duration);
  finish(receive, time, duration);
}

void Clock::begin_call(OperationId id) {
  const plan::Match match = linked_.match(id);
  const GroupCalls& group = linked_.matching.groups[match.with];
  CallProgress& call = calls_[group.first + match.n];
  call.time = std::max(call.time, start(id).value);
  ++call.started;
  if (group.complete && call.started == std::ssize(group.callers)) complete_call(match, call.time);
}

// REQUIRES: all members have started the call; the last one at `time`.
void Clock::complete_call(plan::Match match, double time) {
  const GroupCalls& group = linked_.matching.groups[match.with];
  const auto member = [&](std::size_t slot) { return group.call(slot, match.n); };
  const Step& reference = linked_.step(member(0));
  Mismatch mismatch{.first = member(0)};
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    if (compatible(*linked_.plan, reference, linked_.step(member(slot)))) continue;
    if (mismatch.second.exists()) ++mismatch.more;
    if (!mismatch.second.exists()) mismatch.second = member(slot);
  }
  if (mismatch.second.exists()) mismatches_.push_back(mismatch);
  const bool shared = !mismatch.second.exists() && reference.action == ActionKind::collective;
  if (shared && links_) {
    const CollectiveKind kind = std::get<plan::Collective>(reference.source->action).kind;
    return start_transit(links_->call(kind, {reference.bytes}, match.with, rank_spans_[match.with]),
                         {.send = {}, .receive = {}, .call = match, .begin = time});
  }
  const double together = shared ? duration_of(reference, match.with) : 0;
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    const OperationId id = member(slot);
    finish(id, time, shared ? together : duration_of(linked_.step(id), match.with));
  }
}

double Clock::duration_of(const Step& step, std::int32_t group) const {
  if (step.action == ActionKind::exchange) return step.cost;
  const auto& collective = std::get<plan::Collective>(step.source->action);
  return cost::collective_time(system_, collective.kind, {step.bytes}, rank_spans_[group]).value;
}

void Clock::finish(OperationId id, double time, double duration) {
  const RankTemplate& rank_template = linked_.template_of(id.rank);
  const Step& step = rank_template[id.operation];
  state_[linked_.index(id)] = OperationState::complete;
  ++complete_;
  if (step.event >= 0) {
    trace::Event& event = linked_.event(id);
    event.time = {time};
    event.duration = {duration};
  }
  const double complete = time + duration;
  end_ = std::max(end_, complete);
  const Releases& releases = rank_template.releases[id.operation];
  release(id.rank, releases.at_end, releases.last, complete);
  if (step.member) finish_member({id.rank, step.predecessor}, complete);
}

void Clock::finish_member(OperationId batch, double time) {
  const std::size_t index = linked_.index(batch);
  time_[index] = std::max(time_[index], time);
  if (--pending_[index] == 0) finish(batch, time_[index], 0);
}

void Clock::release(std::int32_t rank, std::int32_t first, std::int32_t last, double time) {
  const std::vector<std::int32_t>& successors = linked_.template_of(rank).successors;
  for (std::int32_t k = first; k < last; ++k) meet_dependency({rank, successors[k]}, time);
}

void Clock::meet_dependency(OperationId id, double time) {
  const std::size_t index = linked_.index(id);
  time_[index] = std::max(time_[index], time);
  if (--pending_[index] == 0) make_ready(id);
}

}  // namespace shiplap::sim
