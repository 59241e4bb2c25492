#include "machine.h"

#include <algorithm>
#include <unordered_set>

namespace shiplap::oracle {

bool Machine::can_start(const State& state, std::size_t node) const {
  const Node& it = nodes_[node];
  if (state[node] != kWaiting || it.is_member) return false;
  return std::ranges::all_of(it.complete_before_start,
                             [&](std::size_t k) { return state[k] == kComplete; }) &&
         std::ranges::all_of(it.started_before_start,
                             [&](std::size_t k) { return state[k] != kWaiting; });
}

bool Machine::can_complete(const State& state, std::size_t node) const {
  const Node& it = nodes_[node];
  if (state[node] != kStarted || it.never_completes) return false;
  return std::ranges::all_of(it.started_before_complete,
                             [&](std::size_t k) { return state[k] != kWaiting; }) &&
         std::ranges::all_of(it.members, [&](std::size_t k) { return state[k] == kComplete; });
}

std::vector<Event> Machine::possible(const State& state) const {
  std::vector<Event> events;
  for (std::size_t k = 0; k < nodes_.size(); ++k) {
    if (can_start(state, k)) events.push_back({.node = k, .starts = true});
    if (can_complete(state, k)) events.push_back({.node = k, .starts = false});
  }
  return events;
}

void Machine::happen(State& state, Event event) const {
  state[event.node] = event.starts ? kStarted : kComplete;
  if (!event.starts) return;
  for (const std::size_t member : nodes_[event.node].members) state[member] = kStarted;
}

std::size_t Machine::starter(std::size_t node) const {
  for (std::size_t k = 0; k < nodes_.size(); ++k) {
    if (std::ranges::find(nodes_[k].members, node) != nodes_[k].members.end()) return k;
  }
  return node;
}

bool Machine::explore(std::size_t most, const std::function<void(const State&)>& visit) const {
  std::unordered_set<State> seen{begin()};
  std::vector<State> todo{begin()};
  while (!todo.empty()) {
    const State state = std::move(todo.back());
    todo.pop_back();
    visit(state);
    for (const Event event : possible(state)) {
      State next = state;
      happen(next, event);
      if (seen.insert(next).second) todo.push_back(std::move(next));
    }
    if (seen.size() > most) return false;
  }
  return true;
}

State Machine::run(const std::function<bool(Event)>& held_back,
                   const std::function<void(Event)>& happened) const {
  State state = begin();
  for (bool moved = true; moved;) {
    moved = false;
    for (const Event event : possible(state)) {
      if (held_back(event)) continue;
      happen(state, event);
      happened(event);
      moved = true;
    }
  }
  return state;
}

}  // namespace shiplap::oracle
