#include "shiplap/engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace shiplap::engine {
namespace {

// The beginning of a coroutine's frame: with what it awaits, a few lines of the cache.
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

// A coroutine that goes on may end, and its Waiter with it: so what comes next is read before.
void Scheduler::resume(Waiter* first) {
  while (first != nullptr) {
    Waiter* const next = first->next;
    // With many tasks, what the next one needs is far away in memory.
    if (next != nullptr) prefetch(next->handle.address());
    ++woken_;
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
    // Of a million that find no memory, not even their exceptions can be kept.
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

std::size_t Scheduler::failed() const {
  const auto found = std::ranges::find_if(
      tasks_, [](const Task& task) { return static_cast<bool>(task.failure()); });
  return static_cast<std::size_t>(found - tasks_.begin());
}

}  // namespace shiplap::engine
