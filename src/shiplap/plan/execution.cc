#include "shiplap/plan/execution.h"

#include <algorithm>
#include <compare>
#include <deque>
#include <map>
#include <set>
#include <utility>

namespace shiplap::plan {

Execution::Execution(const LinkedProgram& linked, std::int64_t eager_limit, Observer* observer,
                     LaunchOrder order)
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
  ProgressTicker ticker(
      progress, {.what = "following operations", .unit = "operations", .total = all}, kInterval);
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
        const Place place{rank, at};
        at = step(place).next;
        start(place);
        moved = true;
      }
    }
  }
}

bool Execution::can_start(Place place) const {
  const RankTemplate& steps = linked_.template_of(place.rank);
  const Step& here = steps[place.operation];
  if (here.gate >= 0) {
    const State gate = state({place.rank, here.gate});
    if (gate == State::waiting || (gate == State::started && !here.opens_at_start)) return false;
  }
  const auto is_complete = [&](std::int32_t earlier) {
    return state({place.rank, earlier}) == State::complete;
  };
  return std::ranges::all_of(steps.after_of(here), is_complete) &&
         std::ranges::all_of(launched_before(place), is_complete);
}

void Execution::start(Place place) {
  set(place, State::started);
  switch (step(place).act) {
    case Act::send:
      return start_send(place);
    case Act::receive:
      return start_receive(place);
    case Act::collective:
    case Act::exchange:
      return start_call(place);
    case Act::batch:
      return start_batch(place);
    case Act::compute:
    case Act::copy:
    case Act::allocate:
    case Act::free:
      if (observer_ != nullptr) observer_->perform(place);
      return complete(place);
  }
}

void Execution::start_batch(Place place) {
  const std::int64_t members = step(place).detail;
  if (members == 0) return complete(place);
  batches_[linked_.index(place)] = members;
  const std::int32_t end = linked_.template_of(place.rank).batch_end(place.operation);
  for (std::int32_t k = place.operation + 1; k < end; ++k) start({place.rank, k});
}

std::size_t Execution::message(Place place) const {
  const Match match = linked_.match(place);
  return linked_.matching.queues[match.with].first + match.n;
}

void Execution::start_send(Place place) {
  Post& post = posts_[message(place)];
  post.sent = true;
  if (observer_ != nullptr) observer_->post(place);
  if (post.awaited) {
    const Place receive = linked_.other_end(place);
    if (observer_ != nullptr) observer_->deliver(place, receive);
    complete(receive);
    complete(place);
  } else if (step(place).bytes <= eager_limit_) {
    complete(place);
  }
}

void Execution::start_receive(Place place) {
  Post& post = posts_[message(place)];
  post.awaited = true;
  if (!post.sent) return;
  const Place send = linked_.other_end(place);
  if (observer_ != nullptr) observer_->deliver(send, place);
  complete(place);
  if (state(send) == State::started) complete(send);
}

void Execution::start_call(Place place) {
  const Match call = linked_.match(place);
  const GroupCalls& group = linked_.matching.groups[call.with];
  if (++arrived_[group.first + call.n] < std::ssize(group.callers) || !group.complete) return;
  if (observer_ != nullptr) observer_->call(call);
  // The last to be woken goes on first, and that should be the first of the group.
  for (std::size_t slot = group.callers.size(); slot-- > 0;) {
    complete(group.call(slot, call.n));
  }
}

void Execution::complete(Place place) {
  set(place, State::complete);
  --left_;
  wake(place.rank);
  const Step& here = step(place);
  if (!here.member) return;
  const Place batch{place.rank, here.gate};
  const auto open = batches_.find(linked_.index(batch));
  if (--open->second > 0) return;
  batches_.erase(open);
  complete(batch);
}

// ---- the launch order of a library

namespace {

// One for each group, and one for the messages of each channel. (torch gives the messages of two
// ranks one of their own, unless they are batched or the group was made with a device.)
struct Communicator {
  std::int32_t group = -1;
  std::int32_t channel = -1;
  friend auto operator<=>(const Communicator&, const Communicator&) = default;
};

Communicator communicator_of(const LinkedProgram& linked, Place place) {
  const std::int32_t with = linked.match(place).with;
  if (is_call(linked.step(place).act)) return {.group = with};
  return {.channel = linked.matching.queues[with].channel};
}

std::set<Communicator> communicators_of(const LinkedProgram& linked, Place place) {
  if (linked.step(place).act != Act::batch) return {communicator_of(linked, place)};
  std::set<Communicator> all;
  const std::int32_t end = linked.template_of(place.rank).batch_end(place.operation);
  for (std::int32_t k = place.operation + 1; k < end; ++k) {
    all.insert(communicator_of(linked, {place.rank, k}));
  }
  return all;
}

bool is_launched(Act act) { return is_message(act) || is_call(act) || act == Act::batch; }

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
      if (!is_launched(steps[k].act) || steps[k].member) continue;
      if (order == LaunchOrder::one_queue) {
        if (last >= 0) before_.push_back(last);
        last = k;
        continue;
      }
      const Place place{static_cast<std::int32_t>(rank), k};
      for (const Communicator& communicator : communicators_of(linked_, place)) {
        const auto [found, is_first] = last_of.try_emplace(communicator, k);
        if (!is_first) before_.push_back(std::exchange(found->second, k));
      }
    }
  }
  before_first_.push_back(std::ssize(before_));
}

std::span<const std::int32_t> Execution::launched_before(Place place) const {
  if (before_first_.empty()) return {};
  const std::size_t index = linked_.index(place);
  const std::int64_t first = before_first_[index];
  return std::span(before_).subspan(first, before_first_[index + 1] - first);
}

// ---- the wait-for graph

std::vector<Place> Execution::absent_members(Match call) const {
  const GroupCalls& group = linked_.matching.groups[call.with];
  std::vector<Place> absent;
  for (std::size_t slot = 0; slot < group.callers.size(); ++slot) {
    const Place member = group.call(slot, call.n);
    if (member.exists() && state(member) == State::waiting) absent.push_back(member);
  }
  return absent;
}

std::vector<Place> Execution::needs(Place place) const {
  const RankTemplate& steps = linked_.template_of(place.rank);
  const Step& here = steps[place.operation];
  std::vector<Place> result;
  if (state(place) == State::waiting) {
    if (here.gate >= 0) {
      const Place gate{place.rank, here.gate};
      const bool open =
          state(gate) == State::complete || (state(gate) == State::started && here.opens_at_start);
      if (!open) result.push_back(gate);
    }
    for (const auto& all : {steps.after_of(here), launched_before(place)}) {
      for (const std::int32_t earlier : all) {
        const Place before{place.rank, earlier};
        if (state(before) != State::complete) result.push_back(before);
      }
    }
    return result;
  }
  if (is_call(here.act)) return absent_members(linked_.match(place));
  if (here.act == Act::batch) {
    const std::int32_t end = steps.batch_end(place.operation);
    for (std::int32_t k = place.operation + 1; k < end; ++k) {
      if (state({place.rank, k}) != State::complete) result.push_back({place.rank, k});
    }
  }
  if (is_message(here.act)) {
    const Place other = linked_.other_end(place);
    if (other.exists()) result.push_back(other);
  }
  return result;
}

std::vector<Place> Execution::stuck() const {
  std::vector<Place> result;
  for (std::int32_t rank = 0; rank < std::ssize(linked_.ranks); ++rank) {
    if (!linked_.is_linked(rank)) continue;
    const RankTemplate& steps = linked_.template_of(rank);
    for (std::int32_t k = 0; k < std::ssize(steps.steps); ++k) {
      if (state({rank, k}) != State::started || steps[k].act == Act::batch) continue;
      result.push_back({rank, k});
      break;
    }
  }
  return result;
}

// Depth first, for a node that is reached from itself. Takes time in proportion to operations and
// members: whoever waits in a call waits for the same members, so a call is a node too and its
// members are looked at once.
class Execution::CycleSearch {
 public:
  explicit CycleSearch(const Execution& execution)
      : execution_(execution),
        linked_(execution.linked_),
        seen_(linked_.matches.size() + execution.arrived_.size()) {}

  // The operations of a cycle, each of which waits for the next; none if there is none.
  std::vector<Place> find() {
    for (std::int32_t rank = 0; rank < std::ssize(linked_.ranks); ++rank) {
      if (!linked_.is_linked(rank)) continue;
      const auto count = std::ssize(linked_.template_of(rank).steps);
      for (std::int32_t k = 0; k < count; ++k) {
        const Node node{{rank, k}};
        if (execution_.state(node.place) == State::complete || seen(node) != Seen::no) continue;
        std::vector<Place> found = from(node);
        if (!found.empty()) return found;
      }
    }
    return {};
  }

 private:
  enum class Seen : std::uint8_t { no, on_path, done };
  // An operation, or the call that it is one of.
  struct Node {
    Place place;
    bool call = false;
  };
  struct Visit {
    Node node;
    std::vector<Place> needs;
    std::size_t next = 0;
  };

  [[nodiscard]] std::size_t index(const Node& node) const {
    if (!node.call) return linked_.index(node.place);
    const Match match = linked_.match(node.place);
    return linked_.matches.size() + linked_.matching.groups[match.with].first + match.n;
  }
  Seen& seen(const Node& node) { return seen_[index(node)]; }

  std::vector<Place> from(const Node& start) {
    enter(start);
    while (!path_.empty()) {
      Visit& visit = path_.back();
      if (visit.next == visit.needs.size()) {
        seen(visit.node) = Seen::done;
        path_.pop_back();
        continue;
      }
      // An operation that waits in a call needs the call, which needs its absent members.
      const Place need = visit.needs[visit.next++];
      const Node target{need, !visit.node.call && waits_in_call(visit.node.place)};
      if (seen(target) == Seen::on_path) return cycle_at(target);
      if (seen(target) == Seen::no) enter(target);
    }
    return {};
  }

  [[nodiscard]] bool waits_in_call(Place place) const {
    return is_call(linked_.step(place).act) && execution_.state(place) == State::started;
  }

  void enter(const Node& node) {
    seen(node) = Seen::on_path;
    Visit visit{.node = node};
    if (node.call) {
      visit.needs = execution_.absent_members(linked_.match(node.place));
    } else if (waits_in_call(node.place)) {
      visit.needs = {node.place};
    } else {
      visit.needs = execution_.needs(node.place);
    }
    path_.push_back(std::move(visit));
  }

  [[nodiscard]] std::vector<Place> cycle_at(const Node& node) const {
    std::vector<Place> result;
    auto it = std::ranges::find(path_, index(node),
                                [&](const Visit& visit) { return index(visit.node); });
    for (; it != path_.end(); ++it) {
      if (!it->node.call) result.push_back(it->node.place);
    }
    return result;
  }

  const Execution& execution_;
  const LinkedProgram& linked_;
  std::vector<Seen> seen_;
  std::vector<Visit> path_;
};

std::int64_t Execution::cost_of_needs(Place place) const {
  const bool looks_at_all = is_call(step(place).act) && state(place) == State::started;
  return looks_at_all ? 1 + std::ssize(linked_.group(place).callers) : 1;
}

// Breadth first, among operations at most `longest` waits away; `budget` counts those looked at.
std::vector<Place> Execution::shortest_cycle(Place through, std::size_t longest,
                                             std::int64_t& budget) const {
  struct Reached {
    Place from;
    std::size_t length = 0;
  };
  std::map<Place, Reached> reached{{through, {}}};
  std::deque<Place> queue{through};
  while (!queue.empty() && budget > 0) {
    const Place place = queue.front();
    queue.pop_front();
    const std::size_t length = reached.at(place).length + 1;
    if (length >= longest) break;
    const std::vector<Place> next_places = needs(place);
    budget -= cost_of_needs(place);
    for (const Place& next : next_places) {
      if (next == through) {
        std::vector<Place> path{place};
        while (path.back() != through) path.push_back(reached.at(path.back()).from);
        std::ranges::reverse(path);
        return path;
      }
      if (reached.emplace(next, Reached{place, length}).second) queue.push_back(next);
    }
  }
  return {};
}

std::vector<Execution::Wait> Execution::wait_cycle() const {
  constexpr std::int64_t kMaxVisits = 200'000;
  const std::vector<Place> cycle = CycleSearch(*this).find();
  // It need not be the shortest. Looking for that is worth some time, not any.
  std::vector<Place> best = cycle;
  std::int64_t budget = kMaxVisits;
  for (const Place& place : cycle) {
    std::vector<Place> other = shortest_cycle(place, best.size(), budget);
    if (!other.empty()) best = std::move(other);
  }
  const auto waits = [&](Place place) {
    return state(place) == State::started && step(place).act != Act::batch;
  };
  const auto first = std::ranges::find_if(best, waits);
  if (first == best.end()) return {};
  std::ranges::rotate(best, first);
  std::vector<Wait> result;
  for (std::size_t k = 0; k < best.size(); ++k) {
    if (waits(best[k])) result.push_back({best[k], best[(k + 1) % best.size()]});
  }
  // The lowest rank first, so that the answer does not depend on where the search began.
  std::ranges::rotate(result, std::ranges::min_element(result, {}, &Wait::waiting));
  return result;
}

}  // namespace shiplap::plan
