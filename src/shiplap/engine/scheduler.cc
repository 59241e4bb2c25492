// Problem: run one coroutine per rank, in worlds of more than 100,000 ranks, with the same result
// on every machine.
//
// Idea: a cooperative (run-to-completion) scheduler of C++20 coroutines on one thread. A strategy
// suspends only in communication; the code that completes a communication calls wake(). A
// collective wakes all of its ranks at once: their Waiters live in their suspended frames and are
// linked into an intrusive list, so a wake of n ranks is one entry of the ready queue.
//
// Invariants:
// - FIFO: the ready queue is drained in rounds, in the order of wake(). So execution is
//   deterministic, and every ready task runs once before any runs twice.
// - A Waiter is valid until its coroutine is resumed. A resumed coroutine may end and free its
//   frame, so resume() reads `next` first.
// - run() returns when the queue is empty. Tasks that are not done then are deadlocked; Trainer
//   reports whom they wait for.
//
// Rejected: a clock (decisions 014, 027). Strategies had a clock of their own before, so that two
// implementations of time, theirs and sim::replay, had to agree. Now they only record.
#include "shiplap/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "shiplap/base/cancellation.h"

namespace shiplap::engine {
namespace {

// Prefetches the first cache lines of a coroutine frame, which hold the awaited op.
void prefetch(const void* frame) {
  constexpr std::size_t kLines = 8;
  constexpr std::size_t kLine = 64;
  const auto* const bytes = static_cast<const char*>(frame);
  for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(bytes + i * kLine);
}

}  // namespace

std::size_t Scheduler::spawn(Task task) {
  tasks_.push_back(std::move(task));
  return tasks_.size() - 1;
}

// A resumed coroutine may end and destroy its Waiter, so `next` is read before.
void Scheduler::resume(Waiter* first) {
  while (first != nullptr) {
    Waiter* const next = first->next;
    // With many tasks the next frame is not in the cache.
    if (next != nullptr) prefetch(next->handle.address());
    ++woken_;
    throw_if_cancelled();
    first->handle.resume();
    first = next;
  }
}

void Scheduler::start_tasks(ProgressTicker& ticker) {
  while (started_ < tasks_.size()) {
    ticker.advance_to(woken_);
    const std::coroutine_handle<> task = tasks_[started_++].handle();
    ++woken_;
    task.resume();
    // If one task runs out of memory, starting more would only store more exceptions.
    if (tasks_[started_ - 1].failure()) started_ = tasks_.size();
  }
}

void Scheduler::run(const ProgressCallback& progress) {
  constexpr std::int64_t kInterval = 4096;
  ProgressTicker ticker(progress, {.what = "recording", .unit = "calls", .done = woken_},
                        kInterval);
  std::vector<Waiter*> turn;
  start_tasks(ticker);
  while (!ready_.empty()) {
    turn.clear();
    std::swap(turn, ready_);
    for (Waiter* const first : turn) {
      resume(first);
      ticker.advance_to(woken_);
    }
    start_tasks(ticker);
  }
}

std::size_t Scheduler::first_failed() const {
  const auto found = std::ranges::find_if(
      tasks_, [](const Task& task) { return static_cast<bool>(task.failure()); });
  return static_cast<std::size_t>(found - tasks_.begin());
}

}  // namespace shiplap::engine
