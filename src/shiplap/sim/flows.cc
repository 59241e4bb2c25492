// Max-min fair sharing of links, event by event.
//
// Problem: several transfers cross a link at once. How fast is each, and when does it end?
//
// Idea: the fluid model of flow-level network simulators (D. Bertsekas and R. Gallager, "Data
// Networks", 1992, section 6.5.2; H. Casanova and L. Marchal, "A network model for simulation of
// grid application", 2002, the base of SimGrid). Between two events rates are constant. They are
// max-min fair: no flow can be faster without slowing down one that is not faster. Progressive
// filling finds them: all rates grow together until a flow reaches its own rate or a link is full;
// then the flows concerned are fixed, and the others grow on. A flow may cross a link with more or
// fewer bytes than its size (a collective sends a part over each rail): its rate counts there with
// that factor.
//
// Only what changes is computed again. A link whose users together demand no more than its capacity
// can never be full, whatever the others do; over all other links, a flow that starts or ends
// changes the rates of a connected component, which collect() finds. A flow that crosses no such
// link is `alone`: its end is known when it starts, and is its only event. The demand of a flow
// counts from its start, before its latency has passed, so that a flow which is alone stays so
// until another one joins. So flows that share nothing cost O(path): a ring of thousands of
// messages is as fast as its queue of events.
//
// Invariants: a flow has one valid event, that of the current version. Link::demand is the sum over
// its users, set to 0 when the last one leaves, so that rounding does not add up.
#include "shiplap/sim/flows.h"

#include <algorithm>
#include <functional>

#include "shiplap/base/error.h"

namespace shiplap::sim {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
// Demands that exceed a capacity by rounding alone do not fill it.
constexpr double kRounding = 1 + 1e-9;

}  // namespace

Flows::Flows(std::vector<double> capacities) : links_(capacities.size()) {
  for (std::size_t k = 0; k < capacities.size(); ++k) links_[k].capacity = capacities[k];
}

std::int32_t Flows::start(double time, std::span<const LinkUse> uses, const FlowSize& size) {
  std::int32_t id = 0;
  if (free_.empty()) {
    id = static_cast<std::int32_t>(flows_.size());
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows_[id];
  flow.uses.clear();
  flow.max_rate = size.rate;
  flow.moves_at = time + size.latency;
  flow.left = size.rate > 0 ? size.bytes : 0;
  flow.rate = 0;
  flow.state = State::alone;
  if (flow.left <= 0) {  // joins no link
    schedule(id, time, size.latency);
    return id;
  }
  for (const LinkUse& use : uses) flow.uses.push_back({.link = use.link, .share = use.share});
  join(id);
  if (!is_contended(flow)) {
    schedule(id, time, size.latency + flow.left / flow.max_rate);
    return id;
  }
  collect(id, time);
  share(time);
  return id;
}

double Flows::next_event() {
  drop_void_events();
  return events_.time();
}

Flows::End Flows::advance() {
  drop_void_events();
  ensure(events_.time() < kForever, "a flow is under way");
  const EventQueue::Event event = events_.next();
  events_.pop();
  Flow& flow = flows_[event.subject];
  if (flow.state == State::waits) {
    flow.state = State::shares;
    flow.since = event.time;
    collect(event.subject, event.time);
    share(event.time);
    return {.time = event.time};
  }
  ++flow.version;
  const bool shared = !flow.uses.empty() && is_contended(flow);
  if (shared) collect(event.subject, event.time);
  flow.state = State::ended;
  leave(event.subject);
  if (shared) share(event.time);
  free_.push_back(event.subject);
  return {.time = event.time, .flow = event.subject};
}

Flows::End Flows::end_next() {
  for (;;) {
    const End end = advance();
    if (end.flow >= 0) return end;
  }
}

double Flows::rate(std::int32_t id, double time) const {
  const Flow& flow = flows_[id];
  return flow.state == State::alone && time >= flow.moves_at ? flow.max_rate : flow.rate;
}

bool Flows::is_contended(const Link& link) { return link.demand > link.capacity * kRounding; }

bool Flows::is_contended(const Flow& flow) const {
  return std::ranges::any_of(flow.uses,
                             [&](const Use& use) { return is_contended(links_[use.link]); });
}

void Flows::join(std::int32_t id) {
  Flow& flow = flows_[id];
  for (std::size_t k = 0; k < flow.uses.size(); ++k) {
    Use& use = flow.uses[k];
    Link& link = links_[use.link];
    use.position = static_cast<std::int32_t>(link.users.size());
    link.users.push_back({.flow = id, .use = static_cast<std::int32_t>(k)});
    link.demand += use.share * flow.max_rate;
  }
}

void Flows::leave(std::int32_t id) {
  for (const Use& use : flows_[id].uses) {
    Link& link = links_[use.link];
    const User moved = link.users.back();
    link.users[use.position] = moved;
    flows_[moved.flow].uses[moved.use].position = use.position;
    link.users.pop_back();
    link.demand = link.users.empty() ? 0 : link.demand - use.share * flows_[id].max_rate;
  }
}

void Flows::mark(std::int32_t id, double time) {
  Flow& flow = flows_[id];
  if (flow.marked) return;
  flow.marked = true;
  found_.push_back(id);
  if (flow.state != State::alone) return;
  if (time < flow.moves_at) {
    flow.state = State::waits;
    schedule(id, time, flow.moves_at - time);
    return;
  }
  flow.state = State::shares;
  flow.since = flow.moves_at;
  flow.rate = time > flow.moves_at ? flow.max_rate : 0;
}

void Flows::collect(std::int32_t id, double time) {
  found_.clear();
  touched_.clear();
  mark(id, time);
  for (std::size_t next = 0; next < found_.size(); ++next) {
    for (const Use& use : flows_[found_[next]].uses) {
      Link& link = links_[use.link];
      if (link.marked || !is_contended(link)) continue;
      link.marked = true;
      touched_.push_back(use.link);
      for (const User& user : link.users) mark(user.flow, time);
    }
  }
}

void Flows::share(double time) {
  open_.clear();
  for (const std::int32_t id : found_) {
    flows_[id].marked = false;
    if (flows_[id].state == State::shares) open_.push_back(id);
  }
  for (const std::int32_t at : touched_) {
    Link& link = links_[at];
    link.left = link.capacity;
    link.weight = 0;
    link.open = 0;
    for (const User& user : link.users) {
      if (flows_[user.flow].state != State::shares) continue;
      link.weight += flows_[user.flow].uses[user.use].share;
      ++link.open;
    }
  }
  while (!open_.empty()) {
    const double level = fair_level();
    const auto is_fixed = [&](std::int32_t id) {
      const Flow& flow = flows_[id];
      return flow.max_rate <= level || std::ranges::any_of(flow.uses, [&](const Use& use) {
               const Link& link = links_[use.link];
               return link.marked && link.left <= level * link.weight * kRounding;
             });
    };
    const auto fixed = std::ranges::partition(open_, std::not_fn(is_fixed));
    for (const std::int32_t id : fixed) fix(id, std::min(level, flows_[id].max_rate), time);
    open_.erase(fixed.begin(), fixed.end());
  }
  for (const std::int32_t at : touched_) links_[at].marked = false;
}

double Flows::fair_level() const {
  double level = kForever;
  for (const std::int32_t at : touched_) {
    const Link& link = links_[at];
    if (link.open > 0) level = std::min(level, std::max(0.0, link.left) / link.weight);
  }
  // The slowest of the flows, if it is slower than that, is fixed first.
  for (const std::int32_t id : open_) level = std::min(level, flows_[id].max_rate);
  return level;
}

void Flows::fix(std::int32_t id, double rate, double time) {
  Flow& flow = flows_[id];
  for (const Use& use : flow.uses) {
    Link& link = links_[use.link];
    if (!link.marked) continue;
    link.left -= use.share * rate;
    link.weight = --link.open == 0 ? 0 : link.weight - use.share;
  }
  if (rate == flow.rate) return;
  flow.left -= flow.rate * (time - flow.since);
  flow.since = time;
  flow.rate = rate;
  schedule(id, time, rate > 0 ? std::max(0.0, flow.left) / rate : kForever);
}

void Flows::schedule(std::int32_t id, double time, double delay) {
  events_.schedule(time, delay, id, ++flows_[id].version);
}

void Flows::drop_void_events() {
  while (events_.time() < kForever &&
         events_.next().version != flows_[events_.next().subject].version) {
    events_.pop();
  }
}

}  // namespace shiplap::sim
