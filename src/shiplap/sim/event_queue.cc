#include "shiplap/sim/event_queue.h"

#include <algorithm>

namespace shiplap::sim {

void EventQueue::Lane::push(const Event& event) {
  if (count == events.size()) {
    std::ranges::rotate(
        events, events.begin() + static_cast<std::ptrdiff_t>(count == 0 ? 0 : begin & (count - 1)));
    begin = 0;
    events.resize(std::max<std::size_t>(16, 2 * count));
  }
  events[(begin + count) & (events.size() - 1)] = event;
  ++count;
}

std::size_t EventQueue::lane_for(double delay) {
  std::size_t empty = kHeap;
  for (std::size_t k = 0; k < used_; ++k) {
    if (lanes_[k].delay == delay) return k;
    if (lanes_[k].count == 0) empty = k;
  }
  if (used_ < kHeap) return used_++;
  return empty;
}

void EventQueue::schedule(double now, double delay, std::int32_t subject, std::uint32_t version) {
  const Event event{.time = now + delay, .subject = subject, .version = version};
  const std::size_t at = lane_for(delay);
  if (at == kHeap) {
    heap_.push(event);
    front_[kHeap] = heap_.top().time;
  } else {
    lanes_[at].delay = delay;
    lanes_[at].push(event);
    front_[at] = lanes_[at].front().time;
  }
  find_next();
}

void EventQueue::pop() {
  if (next_ == kHeap) {
    heap_.pop();
    front_[kHeap] = heap_.empty() ? kNever : heap_.top().time;
  } else {
    Lane& lane = lanes_[next_];
    ++lane.begin;
    front_[next_] = --lane.count == 0 ? kNever : lane.front().time;
  }
  find_next();
}

void EventQueue::find_next() {
  std::size_t best = kHeap;
  const auto event_of = [&](std::size_t at) -> const Event& {
    return at == kHeap ? heap_.top() : lanes_[at].front();
  };
  for (std::size_t k = 0; k < used_; ++k) {
    if (front_[k] < front_[best] ||
        (front_[k] == front_[best] && front_[k] < kNever && event_of(best) > event_of(k))) {
      best = k;
    }
  }
  next_ = best;
}

}  // namespace shiplap::sim
