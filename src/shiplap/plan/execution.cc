// Execution without a clock, and deadlock detection.
//
// Problem: can a plan deadlock in any interleaving of its ranks and streams? If so, why?
//
// Idea: one execution decides. Matching is fixed (matching.cc), there are no shared resources, and
// the conditions under which an operation starts or completes are monotone: starting one operation
// never disables another. So whatever can start, starts; if this order gets stuck, every order gets
// stuck, and if it ends, every order ends. This is the determinacy of process networks (G. Kahn,
// "The semantics of a simple language for parallel programming", IFIP 1974). Eager sends only
// remove waits: a plan that ends with rendezvous sends ends with any eager limit.
//
// Each rank has a cursor per stream. Ranks whose state may have changed are in ready_; a rank is
// polled until none of its cursors can advance.
//
// Invariants:
// - An operation starts when its predecessor in the stream is complete (or started, if that one is
//   asynchronous), all its `after` are complete and the launch order allows it.
// - A send completes at once if it is eager, otherwise when its receive starts; a call when all
//   members have started it; a batch with its last member.
//
// A stuck execution leaves a wait-for graph (R. C. Holt, "Some deadlock properties of computer
// systems", 1972); a rank hangs because of a cycle in it, or of an operation that no rank makes.
// Cycles are found by depth-first search in time linear in operations and group members: a call is
// a node of its own, because all its callers wait for the same absent members, and one edge per
// pair of members would be four billion for a group of 65,536. The first cycle found may be long,
// so a breadth-first search with a budget looks for a shorter one.
//
// Rejected: exploring interleavings (one order is enough); a Petri net or SMT encoding (two orders
// of magnitude slower, and no better answer); the loop of sim's clock, which releases successors by
// counters and has no order: check follows values in the order of this execution.
#include "shiplap/plan/execution.h"

#include <algorithm>
#include <compare>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace shiplap::plan {

Execution::Execution(const LinkedProgram& linked, std::int64_t eager_limit,
                     ExecutionObserver* observer, LaunchOrder order)
    : linked_(linked),
      eager_limit_(eager_limit),
      observer_(observer),
      states_(linked.matches.size()),
      next_(linked.ranks.size()),
      posts_(linked.matching.messages),
      arrived_(linked.matching.calls),
      awake_(linked.ranks.size()),
      left_(std::ssize(linked.matches)) {
  for (std::size_t rank = 0; rank < linked.ranks.size(); ++rank) {
    if (linked.is_linked(rank)) next_[rank] = linked.template_of(rank).heads;
  }
  if (order != LaunchOrder::free) order_launches(order);
}

bool Execution::run(const ProgressCallback& progress) {
  constexpr std::int64_t kInterval = 4096;
  const std::int64_t all = left_;
  ProgressTicker ticker(progress, {.what = kExecutionTask, .unit = "operations", .total = all},
                        kInterval);
  for (std::size_t rank = next_.size(); rank-- > 0;) {
    if (!next_[rank].empty()) wake(static_cast<std::int32_t>(rank));
  }
  while (!ready_.empty()) {
    const std::int32_t rank = ready_.back();
    ready_.pop_back();
    awake_[rank] = false;
    poll(rank);
    ticker.advance_to(all - left_);
  }
  return left_ == 0;
}

void Execution::wake(std::int32_t rank) {
  if (awake_[rank]) return;
  awake_[rank] = true;
  ready_.push_back(rank);
}

void Execution::poll(std::int32_t rank) {
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int32_t& at : next_[rank]) {
      while (at >= 0 && can_start({rank, at})) {
        const OperationId id{rank, at};
        at = step(id).next;
        start(id);
        moved = true;
      }
    }
  }
}

bool Execution::can_start(OperationId id) const {
  const RankTemplate& steps = linked_.template_of(id.rank);
  const Step& here = steps[id.operation];
  if (here.predecessor >= 0) {
    const OperationState predecessor = state({id.rank, here.predecessor});
    if (predecessor == OperationState::waiting ||
        (predecessor == OperationState::started && !here.overlaps_predecessor))
      return false;
  }
  const auto is_complete = [&](std::int32_t earlier) {
    return state({id.rank, earlier}) == OperationState::complete;
  };
  return std::ranges::all_of(steps.after_of(here), is_complete) &&
         std::ranges::all_of(launched_before(id), is_complete);
}

void Execution::start(OperationId id) {
  set(id, OperationState::started);
  switch (step(id).action) {
    case ActionKind::send:
      return start_send(id);
    case ActionKind::receive:
      return start_receive(id);
    case ActionKind::collective:
    case ActionKind::exchange:
      return start_call(id);
    case ActionKind::batch:
      return start_batch(id);
    case ActionKind::compute:
    case ActionKind::copy:
    case ActionKind::allocate:
    case ActionKind::free:
      if (observer_ != nullptr) observer_->perform(id);
      return complete(id);
  }
}

void Execution::start_batch(OperationId id) {
  const std::int64_t members = step(id).detail;
  if (members == 0) return complete(id);
  batches_[linked_.index(id)] = members;
  const std::int32_t end = linked_.template_of(id.rank).batch_end(id.operation);
  for (std::int32_t k = id.operation + 1; k < end; ++k) start({id.rank, k});
}

std::size_t Execution::message(OperationId id) const {
  const Match match = linked_.match(id);
  return linked_.matching.queues[match.with].first + match.n;
}

void Execution::start_send(OperationId id) {
  Post& post = posts_[message(id)];
  post.sent = true;
  if (observer_ != nullptr) observer_->post(id);
  if (post.awaited) {
    const OperationId receive = linked_.other_end(id);
    if (observer_ != nullptr) observer_->deliver(id, receive);
    complete(receive);
    complete(id);
  } else if (step(id).bytes <= eager_limit_) {
    complete(id);
  }
}

void Execution::start_receive(OperationId id) {
  Post& post = posts_[message(id)];
  post.awaited = true;
  if (!post.sent) return;
  const OperationId send = linked_.other_end(id);
  if (observer_ != nullptr) observer_->deliver(send, id);
  complete(id);
  if (state(send) == OperationState::started) complete(send);
}

void Execution::start_call(OperationId id) {
  const Match call = linked_.match(id);
  const GroupCalls& group = linked_.matching.groups[call.with];
  if (++arrived_[group.first + call.n] < std::ssize(group.callers) || !group.complete) return;
  if (observer_ != nullptr) observer_->call(call);
  // ready_ is a stack: wake the first member of the group last, so that it continues first.
  for (std::size_t slot = group.callers.size(); slot-- > 0;) {
    complete(group.call(slot, call.n));
  }
}

void Execution::complete(OperationId id) {
  set(id, OperationState::complete);
  --left_;
  wake(id.rank);
  const Step& here = step(id);
  if (!here.member) return;
  const OperationId batch{id.rank, here.predecessor};
  const auto open = batches_.find(linked_.index(batch));
  if (--open->second > 0) return;
  batches_.erase(open);
  complete(batch);
}

// ---- launch order

namespace {

// A communicator of the library: one for each group, and one for the messages of each channel.
// (torch makes one for each pair of ranks that exchange messages, unless they are batched or the
// group was made with a device.)
struct Communicator {
  std::int32_t group = -1;
  std::int32_t channel = -1;
  friend auto operator<=>(const Communicator&, const Communicator&) = default;
};

Communicator communicator_of(const LinkedProgram& linked, OperationId id) {
  const std::int32_t with = linked.match(id).with;
  if (is_call(linked.step(id).action)) return {.group = with};
  return {.channel = linked.matching.queues[with].channel};
}

std::set<Communicator> communicators_of(const LinkedProgram& linked, OperationId id) {
  if (linked.step(id).action != ActionKind::batch) return {communicator_of(linked, id)};
  std::set<Communicator> all;
  const std::int32_t end = linked.template_of(id.rank).batch_end(id.operation);
  for (std::int32_t k = id.operation + 1; k < end; ++k) {
    all.insert(communicator_of(linked, {id.rank, k}));
  }
  return all;
}

bool is_launched(ActionKind action) {
  return is_message(action) || is_call(action) || action == ActionKind::batch;
}

}  // namespace

void Execution::order_launches(LaunchOrder order) {
  before_first_.reserve(linked_.matches.size() + 1);
  for (std::size_t rank = 0; rank < linked_.ranks.size(); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    const RankTemplate& steps = linked_.template_of(rank);
    std::int32_t last = -1;
    std::map<Communicator, std::int32_t> last_of;
    for (std::int32_t k = 0; k < std::ssize(steps.steps); ++k) {
      before_first_.push_back(std::ssize(before_));
      if (!is_launched(steps[k].action) || steps[k].member) continue;
      if (order == LaunchOrder::one_queue) {
        if (last >= 0) before_.push_back(last);
        last = k;
        continue;
      }
      const OperationId id{static_cast<std::int32_t>(rank), k};
      for (const Communicator& communicator : communicators_of(linked_, id)) {
        const auto [found, is_first] = last_of.try_emplace(communicator, k);
        if (!is_first) before_.push_back(std::exchange(found->second, k));
      }
    }
  }
  before_first_.push_back(std::ssize(before_));
}

std::span<const std::int32_t> Execution::launched_before(OperationId id) const {
  if (before_first_.empty()) return {};
  const std::size_t index = linked_.index(id);
  const std::int64_t first = before_first_[index];
  return std::span(before_).subspan(first, before_first_[index + 1] - first);
}

// ---- the wait-for graph

std::vector<OperationId> Execution::absent_members(Match call) const {
  const GroupCalls& group = linked_.matching.groups[call.with];
  std::vector<OperationId> absent;
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    const OperationId member = group.call(slot, call.n);
    if (member.exists() && state(member) == OperationState::waiting) absent.push_back(member);
  }
  return absent;
}

std::vector<OperationId> Execution::needs(OperationId id) const {
  const RankTemplate& steps = linked_.template_of(id.rank);
  const Step& here = steps[id.operation];
  std::vector<OperationId> result;
  if (state(id) == OperationState::waiting) {
    if (here.predecessor >= 0) {
      const OperationId predecessor{id.rank, here.predecessor};
      const bool open =
          state(predecessor) == OperationState::complete ||
          (state(predecessor) == OperationState::started && here.overlaps_predecessor);
      if (!open) result.push_back(predecessor);
    }
    for (const auto& all : {steps.after_of(here), launched_before(id)}) {
      for (const std::int32_t earlier : all) {
        const OperationId before{id.rank, earlier};
        if (state(before) != OperationState::complete) result.push_back(before);
      }
    }
    return result;
  }
  if (is_call(here.action)) return absent_members(linked_.match(id));
  if (here.action == ActionKind::batch) {
    const std::int32_t end = steps.batch_end(id.operation);
    for (std::int32_t k = id.operation + 1; k < end; ++k) {
      if (state({id.rank, k}) != OperationState::complete) result.push_back({id.rank, k});
    }
  }
  if (is_message(here.action)) {
    const OperationId other = linked_.other_end(id);
    if (other.exists()) result.push_back(other);
  }
  return result;
}

std::vector<OperationId> Execution::stuck() const {
  std::vector<OperationId> result;
  for (std::int32_t rank = 0; rank < std::ssize(linked_.ranks); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    const RankTemplate& steps = linked_.template_of(rank);
    for (std::int32_t k = 0; k < std::ssize(steps.steps); ++k) {
      if (state({rank, k}) != OperationState::started || steps[k].action == ActionKind::batch)
        continue;
      result.push_back({rank, k});
      break;
    }
  }
  return result;
}

// Depth-first search for a back edge. A call is a node of its own (see above).
class Execution::CycleSearch {
 public:
  explicit CycleSearch(const Execution& execution)
      : execution_(execution),
        linked_(execution.linked_),
        seen_(linked_.matches.size() + execution.arrived_.size()) {}

  // Returns the operations of a cycle, each of which waits for the next; empty if there is none.
  std::vector<OperationId> find() {
    for (std::int32_t rank = 0; rank < std::ssize(linked_.ranks); ++rank) {
      if (!linked_.is_linked(rank)) continue;
      const auto count = std::ssize(linked_.template_of(rank).steps);
      for (std::int32_t k = 0; k < count; ++k) {
        const Node node{{rank, k}};
        if (execution_.state(node.id) == OperationState::complete || seen(node) != Seen::no)
          continue;
        std::vector<OperationId> found = from(node);
        if (!found.empty()) return found;
      }
    }
    return {};
  }

 private:
  enum class Seen : std::uint8_t { no, on_path, done };
  // An operation, or the call of which it is a member.
  struct Node {
    OperationId id;
    bool call = false;
  };
  struct Visit {
    Node node;
    std::vector<OperationId> needs;
    std::size_t next = 0;
  };

  [[nodiscard]] std::size_t index(const Node& node) const {
    if (!node.call) return linked_.index(node.id);
    const Match match = linked_.match(node.id);
    return linked_.matches.size() + linked_.matching.groups[match.with].first + match.n;
  }
  Seen& seen(const Node& node) { return seen_[index(node)]; }

  std::vector<OperationId> from(const Node& start) {
    enter(start);
    while (!path_.empty()) {
      Visit& visit = path_.back();
      if (visit.next == visit.needs.size()) {
        seen(visit.node) = Seen::done;
        path_.pop_back();
        continue;
      }
      // An operation that waits in a call needs the call, which needs its absent members.
      const OperationId need = visit.needs[visit.next++];
      const Node target{need, !visit.node.call && waits_in_call(visit.node.id)};
      if (seen(target) == Seen::on_path) return cycle_at(target);
      if (seen(target) == Seen::no) enter(target);
    }
    return {};
  }

  [[nodiscard]] bool waits_in_call(OperationId id) const {
    return is_call(linked_.step(id).action) && execution_.state(id) == OperationState::started;
  }

  void enter(const Node& node) {
    seen(node) = Seen::on_path;
    Visit visit{.node = node};
    if (node.call) {
      visit.needs = execution_.absent_members(linked_.match(node.id));
    } else if (waits_in_call(node.id)) {
      visit.needs = {node.id};
    } else {
      visit.needs = execution_.needs(node.id);
    }
    path_.push_back(std::move(visit));
  }

  [[nodiscard]] std::vector<OperationId> cycle_at(const Node& node) const {
    std::vector<OperationId> result;
    auto it = std::ranges::find(path_, index(node),
                                [&](const Visit& visit) { return index(visit.node); });
    for (; it != path_.end(); ++it) {
      if (!it->node.call) result.push_back(it->node.id);
    }
    return result;
  }

  const Execution& execution_;
  const LinkedProgram& linked_;
  std::vector<Seen> seen_;
  std::vector<Visit> path_;
};

std::int64_t Execution::cost_of_needs(OperationId id) const {
  const bool visits_members = is_call(step(id).action) && state(id) == OperationState::started;
  return visits_members ? 1 + std::ssize(linked_.group(id).callers) : 1;
}

// Breadth-first search to a depth of less than `longest`. Visits are subtracted from `budget`.
std::vector<OperationId> Execution::shortest_cycle(OperationId through, std::size_t longest,
                                                   std::int64_t& budget) const {
  struct Visited {
    OperationId from;
    std::size_t length = 0;
  };
  std::map<OperationId, Visited> visited{{through, {}}};
  std::deque<OperationId> queue{through};
  while (!queue.empty() && budget > 0) {
    const OperationId id = queue.front();
    queue.pop_front();
    const std::size_t length = visited.at(id).length + 1;
    if (length >= longest) break;
    const std::vector<OperationId> awaited = needs(id);
    budget -= cost_of_needs(id);
    for (const OperationId& next : awaited) {
      if (next == through) {
        std::vector<OperationId> path{id};
        while (path.back() != through) path.push_back(visited.at(path.back()).from);
        std::ranges::reverse(path);
        return path;
      }
      if (visited.emplace(next, Visited{id, length}).second) queue.push_back(next);
    }
  }
  return {};
}

std::vector<Execution::Wait> Execution::wait_cycle() const {
  constexpr std::int64_t kMaxVisits = 200'000;
  const std::vector<OperationId> cycle = CycleSearch(*this).find();
  // It need not be the shortest; the search for a shorter one is bounded.
  std::vector<OperationId> best = cycle;
  std::int64_t budget = kMaxVisits;
  for (const OperationId& id : cycle) {
    std::vector<OperationId> other = shortest_cycle(id, best.size(), budget);
    if (!other.empty()) best = std::move(other);
  }
  const auto waits = [&](OperationId id) {
    return state(id) == OperationState::started && step(id).action != ActionKind::batch;
  };
  const auto first = std::ranges::find_if(best, waits);
  if (first == best.end()) return {};
  std::ranges::rotate(best, first);
  std::vector<Wait> result;
  for (std::size_t k = 0; k < best.size(); ++k) {
    if (waits(best[k])) result.push_back({best[k], best[(k + 1) % best.size()]});
  }
  // The lowest rank first, so that the result does not depend on where the search began.
  std::ranges::rotate(result, std::ranges::min_element(result, {}, &Wait::waiting));
  return result;
}

}  // namespace shiplap::plan
