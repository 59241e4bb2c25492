// Virtual time. One Simulation is one world: run as many as you like, each on one thread.
//
// Whoever waits is woken in order of (time, order of scheduling), so the same input always gives
// the same result, on any machine. Nothing polls: what nobody wakes stays asleep, and run() says
// so.
#pragma once

#include <coroutine>
#include <cstdint>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/engine/task.h"

namespace shiplap::engine {

// A suspended coroutine. Those that wake together are linked, and cost one event.
struct Waiter {
  std::coroutine_handle<> handle;
  Waiter* next = nullptr;
};

class Simulation {
 public:
  Simulation() = default;
  Simulation(const Simulation&) = delete;  // tasks refer to it
  Simulation& operator=(const Simulation&) = delete;
  ~Simulation() = default;

  [[nodiscard]] Seconds now() const { return {now_}; }
  // How often a coroutine was woken.
  [[nodiscard]] std::int64_t woken() const { return woken_; }

  // Begins `task` at the current time, once run() gets there. The simulation owns it from here on.
  // Returns its number.
  std::size_t spawn(Task task);

  // Wakes `first` and those linked to it, in this order. Not before now: what is in the past
  // happens now.
  void wake(Seconds time, Waiter& first);

  // `co_await simulation.until(t)`, `co_await simulation.pause(dt)`
  [[nodiscard]] auto until(Seconds time) {
    struct Awaiter : Waiter {
      Simulation& simulation;
      Seconds time;
      Awaiter(Simulation& s, Seconds t) : simulation(s), time(t) {}
      [[nodiscard]] static bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<> caller) {
        handle = caller;
        simulation.wake(time, *this);
      }
      static void await_resume() {}
    };
    return Awaiter(*this, time);
  }
  [[nodiscard]] auto pause(Seconds duration) { return until({now_ + duration.value}); }

  // Until nothing is left to wake. A task that fails is over; the others go on.
  void run();

  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  // The first task that failed, or the number of tasks.
  [[nodiscard]] std::size_t failed() const;

 private:
  struct Event {
    double time;
    std::uint64_t order;
    Waiter* first;
    [[nodiscard]] bool before(const Event& other) const {
      return time < other.time || (time == other.time && order < other.order);
    }
  };
  void push(const Event& event);
  Event pop();
  void resume(Waiter* first);
  void start_tasks();

  double now_ = 0;
  std::uint64_t scheduled_ = 0;
  std::int64_t woken_ = 0;
  // A heap with four children to a node: half as deep as a binary one, and siblings share cache
  // lines.
  std::vector<Event> heap_;
  // What is to wake at the current time, which is later in order than all in the heap.
  std::vector<Waiter*> due_;
  std::size_t next_due_ = 0;
  std::vector<Task> tasks_;
  std::size_t started_ = 0;
};

}  // namespace shiplap::engine
