// The hand-off. XLA calls a handler, the handler submits a task, and the task completes the promise
// of the call, which runs XLA's continuation right there, on the thread of the pool. Often that
// continuation comes to the next handler, which submits the next task: from within a task. To wake
// another thread for it costs 25 to 50 us on two cores, more than a small task, and this thread is
// about to be idle. So a task that is submitted from within a task wakes nobody; it is left in the
// queue for this thread, which takes it when its own task returns.
//
// That would be a deadlock if the task then waits for the one it submitted (as XLA does for a sum
// behind a call). So a watchdog looks at the queue 1 ms later (a timerfd: to arm it costs little,
// and it stays armed whatever became of the task). If the task is still there, all idle threads are
// woken, so it starts within 2 ms, and the next tasks wake a thread at once: a program that does
// this once does it again.
//
// Rejected: idle threads that spin for 50 us, a timer that is armed and disarmed for each task, a
// thread woken for each task (docs/decisions/020-jax.md has the figures).
#include "thread_pool.h"

#include <pthread.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>

namespace shiplap::python::jax {
namespace {

constexpr std::chrono::nanoseconds kWatchdogDelay = std::chrono::milliseconds(1);
constexpr int kTasksWokenAtOnce = 64;  // after the watchdog found one waiting

thread_local bool is_worker = false;

// A thread with all signals blocked: they are for those of the program. It inherits the floating
// point mode of the caller (XLA's threads flush denormals).
void start_detached(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(std::move(body)).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool* const pool = new ThreadPool;  // NOLINT(cppcoreguidelines-owning-memory)
  return *pool;
}

ThreadPool::ThreadPool() : timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (timer_ >= 0) start_detached([this, timer = timer_] { run_watchdog(timer); });
}

void ThreadPool::submit(std::function<void()> task) {
  {
    const MutexLock lock(mutex_);
    if (queue_.size() == idle_) return start_worker(std::move(task));
    queue_.push_back({.task = std::move(task), .since = Clock::now()});
    if (is_worker && wake_at_once_ == 0 && arm_watchdog()) return;
    if (is_worker && wake_at_once_ > 0) --wake_at_once_;
  }
  queued_.notify_one();
}

void ThreadPool::start_worker(std::function<void()> first) {
  start_detached([this, task = std::move(first)]() mutable {
    is_worker = true;
    std::exchange(task, nullptr)();
    run_worker();
  });
}

void ThreadPool::run_worker() {
  MutexLock lock(mutex_);
  while (true) {
    ++idle_;
    while (queue_.empty()) queued_.wait(mutex_);
    --idle_;
    std::function<void()> task = std::move(queue_.front().task);
    queue_.pop_front();
    const bool has_more = !queue_.empty();  // perhaps the one that this thread was woken for
    lock.unlock();
    if (has_more) queued_.notify_one();
    task();
    task = nullptr;
    lock.lock();
  }
}

bool ThreadPool::arm_watchdog() {
  if (is_armed_ || timer_ < 0) return is_armed_;
  const itimerspec when{.it_interval = {},
                        .it_value = {.tv_sec = 0, .tv_nsec = kWatchdogDelay.count()}};
  is_armed_ = timerfd_settime(timer_, 0, &when, nullptr) == 0;
  return is_armed_;
}

void ThreadPool::run_watchdog(int timer) {
  std::uint64_t times = 0;
  while (read(timer, &times, sizeof times) >= 0 || errno == EINTR) {
    const MutexLock lock(mutex_);
    is_armed_ = false;
    if (queue_.empty()) continue;
    if (Clock::now() - queue_.front().since < kWatchdogDelay && arm_watchdog()) continue;
    wake_at_once_ = kTasksWokenAtOnce;
    queued_.notify_all();
  }
  const MutexLock lock(mutex_);
  is_armed_ = false;
  timer_ = -1;
  queued_.notify_all();
}

}  // namespace shiplap::python::jax
