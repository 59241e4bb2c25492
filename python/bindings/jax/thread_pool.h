// Threads for calls that wait for other processes, and so must not block the few threads of XLA.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

#include "shiplap/base/thread_annotations.h"

namespace shiplap::python::jax {

// A pool without a limit: a task never waits for another one to end, as tasks of several ranks wait
// for each other. Threads stay until the process ends, as many as there were tasks at one time; a
// child that was forked has none, and must not use it.
class ThreadPool {
 public:
  // The one of this process. Never destroyed, as its threads never end.
  static ThreadPool& instance();

  // Starts the task on a thread that is idle, or on a new one. REQUIRES: it does not throw. Throws
  // std::system_error if no further thread can be started; then the task does not run.
  void submit(std::function<void()> task) SHIPLAP_EXCLUDES(mutex_);

 private:
  using Clock = ConditionVariable::Clock;
  struct Queued {
    std::function<void()> task;
    Clock::time_point since;
  };

  ThreadPool();
  void start_worker(std::function<void()> first);
  [[noreturn]] void run_worker() SHIPLAP_EXCLUDES(mutex_);
  // False if there is no timer.
  bool arm_watchdog() SHIPLAP_REQUIRES(mutex_);
  void run_watchdog(int timer) SHIPLAP_EXCLUDES(mutex_);

  Mutex mutex_;
  ConditionVariable queued_;
  std::deque<Queued> queue_ SHIPLAP_GUARDED_BY(mutex_);  // never more than there are idle threads
  std::size_t idle_ SHIPLAP_GUARDED_BY(mutex_) = 0;
  int wake_at_once_ SHIPLAP_GUARDED_BY(mutex_) = 0;  // for so many tasks
  int timer_ SHIPLAP_GUARDED_BY(mutex_);  // < 0: none, and all tasks wake a thread at once
  bool is_armed_ SHIPLAP_GUARDED_BY(mutex_) = false;
};

}  // namespace shiplap::python::jax
