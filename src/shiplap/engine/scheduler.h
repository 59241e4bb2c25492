// A cooperative, deterministic, single-threaded scheduler of coroutines: runs until every task is
// done or suspended. Schedulers are independent of each other.
//
// Tasks resume in the order in which they were woken (FIFO), so equal input gives equal results on
// any machine. Nothing polls: a task that is never woken stays suspended, which tasks() shows.
// There is no clock; sim::replay computes times.
#pragma once

#include <coroutine>
#include <cstdint>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/engine/task.h"

namespace shiplap::engine {

// A suspended coroutine, in an intrusive list of those that are woken together.
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

  // The number of resumptions.
  [[nodiscard]] std::int64_t woken() const { return woken_; }

  // Takes ownership of `task`, which starts in run(). Returns its index in tasks().
  std::size_t spawn(Task task);

  // Appends `first` and its list to the ready queue.
  void wake(Waiter& first) { ready_.push_back(&first); }

  // `co_await scheduler.yield()` moves the caller to the end of the ready queue.
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

  // Runs until the ready queue is empty. A task that throws ends; the others continue.
  void run(const ProgressCallback& progress = {});

  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  // The index of the first task that threw, or tasks().size().
  [[nodiscard]] std::size_t first_failed() const;

 private:
  void resume(Waiter* first);
  void start_tasks(ProgressTicker& ticker);

  std::int64_t woken_ = 0;
  std::vector<Waiter*> ready_;  // queue, drained in rounds
  std::vector<Task> tasks_;
  std::size_t started_ = 0;
};

}  // namespace shiplap::engine
