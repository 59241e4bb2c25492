// Coroutines that run in turn on one thread, until all are done or asleep. One Scheduler is one
// world: run as many as you like.
//
// Whoever can go on does so in the order in which it was woken, so the same input always gives the
// same result, on any machine. Nothing polls: what nobody wakes stays asleep, and tasks() says so.
// There is no clock: how long things take is for sim::replay to say.
#pragma once

#include <coroutine>
#include <cstdint>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/engine/task.h"

namespace shiplap::engine {

// A suspended coroutine. Those that wake together are linked.
struct Waiter {
  std::coroutine_handle<> handle;
  Waiter* next = nullptr;
};

class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;  // tasks refer to it
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler() = default;

  // How often a coroutine was woken.
  [[nodiscard]] std::int64_t woken() const { return woken_; }

  // Begins `task` once run() gets there. The scheduler owns it from here on. Returns its number.
  std::size_t spawn(Task task);

  // Wakes `first` and those linked to it, in this order, after all that were woken before.
  void wake(Waiter& first) { ready_.push_back(&first); }

  // `co_await scheduler.yield()` lets all others that can go on do so first.
  [[nodiscard]] auto yield() {
    struct Awaiter : Waiter {
      Scheduler& scheduler;
      explicit Awaiter(Scheduler& s) : scheduler(s) {}
      [[nodiscard]] static bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<> caller) {
        handle = caller;
        scheduler.wake(*this);
      }
      static void await_resume() {}
    };
    return Awaiter(*this);
  }

  // Until nothing is left to wake. A task that fails is over; the others go on.
  void run(const ProgressCallback& progress = {});

  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  // The first task that failed, or the number of tasks.
  [[nodiscard]] std::size_t failed() const;

 private:
  void resume(Waiter* first);
  void start_tasks(ProgressTicker& ticker);

  std::int64_t woken_ = 0;
  std::vector<Waiter*> ready_;  // a queue, emptied as a whole
  std::vector<Task> tasks_;
  std::size_t started_ = 0;
};

}  // namespace shiplap::engine
