// Events in the order of time, for simulations in which most have one of a few delays.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

namespace shiplap::sim {

// Time only advances, so events that were scheduled with equal delays are already in order: they
// wait in a ring buffer of their own, and only the others in a heap. The order of events at equal
// times depends on nothing but the calls.
class EventQueue {
 public:
  struct Event {
    double time = 0;
    std::int32_t subject = 0;
    std::uint32_t version = 0;
    friend bool operator>(const Event& a, const Event& b) {
      return a.time > b.time || (a.time == b.time && a.subject > b.subject);
    }
  };

  EventQueue() { front_.fill(kNever); }
  // REQUIRES: `now` is not before that of any event scheduled so far.
  void schedule(double now, double delay, std::int32_t subject, std::uint32_t version);
  // The time of the next event; infinity: there is none.
  [[nodiscard]] double time() const { return front_[next_]; }
  // REQUIRES: there is an event.
  [[nodiscard]] const Event& next() const {
    return next_ == kHeap ? heap_.top() : lanes_[next_].front();
  }
  void pop();

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr std::size_t kHeap = 8;

  // A ring buffer whose capacity is a power of two.
  struct Lane {
    double delay = 0;
    std::size_t begin = 0;
    std::size_t count = 0;
    std::vector<Event> events;
    [[nodiscard]] const Event& front() const { return events[begin & (events.size() - 1)]; }
    void push(const Event& event);
  };
  // The queue for events with this delay, kHeap if all lanes have others.
  [[nodiscard]] std::size_t lane_for(double delay);
  void find_next();

  std::array<Lane, kHeap> lanes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> heap_;
  std::array<double, kHeap + 1> front_;  // the time of the first event of each
  std::size_t used_ = 0;                 // lanes that ever had an event
  std::size_t next_ = kHeap;
};

}  // namespace shiplap::sim
