#include "shiplap/engine/simulation.h"

#include <algorithm>
#include <utility>

namespace shiplap::engine {
namespace {

constexpr std::size_t kChildren = 4;

// The beginning of a coroutine's frame: with what it awaits, a few lines of the cache.
void prefetch(const void* frame) {
  constexpr std::size_t kLines = 8;
  constexpr std::size_t kLine = 64;
  const auto* const bytes = static_cast<const char*>(frame);
  for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(bytes + i * kLine);
}

}  // namespace

std::size_t Simulation::spawn(Task task) {
  tasks_.push_back(std::move(task));
  return tasks_.size() - 1;
}

void Simulation::wake(Seconds time, Waiter& first) {
  if (time.value <= now_) {
    due_.push_back(&first);
  } else {
    push({.time = time.value, .order = scheduled_++, .first = &first});
  }
}

void Simulation::push(const Event& event) {
  std::size_t hole = heap_.size();
  heap_.push_back(event);
  while (hole > 0) {
    const std::size_t parent = (hole - 1) / kChildren;
    if (!event.before(heap_[parent])) break;
    heap_[hole] = heap_[parent];
    hole = parent;
  }
  heap_[hole] = event;
}

Simulation::Event Simulation::pop() {
  const Event top = heap_.front();
  const Event last = heap_.back();
  heap_.pop_back();
  if (heap_.empty()) return top;
  std::size_t hole = 0;
  const std::size_t size = heap_.size();
  for (std::size_t child = 1; child < size; child = hole * kChildren + 1) {
    const std::size_t end = std::min(child + kChildren, size);
    std::size_t least = child;
    for (std::size_t other = child + 1; other < end; ++other) {
      if (heap_[other].before(heap_[least])) least = other;
    }
    if (!heap_[least].before(last)) break;
    heap_[hole] = heap_[least];
    hole = least;
  }
  heap_[hole] = last;
  return top;
}

// A coroutine that goes on may end, and its Waiter with it: so what comes next is read before.
void Simulation::resume(Waiter* first) {
  while (first != nullptr) {
    Waiter* const next = first->next;
    // With many tasks, what the next one needs is far away in memory.
    if (next != nullptr) prefetch(next->handle.address());
    ++woken_;
    first->handle.resume();
    first = next;
  }
}

void Simulation::start_tasks() {
  while (started_ < tasks_.size()) {
    const std::coroutine_handle<> task = tasks_[started_++].handle();
    ++woken_;
    task.resume();
    // Of a million that find no memory, not even their exceptions can be kept.
    if (tasks_[started_ - 1].failure()) started_ = tasks_.size();
  }
}

void Simulation::run() {
  start_tasks();
  while (true) {
    // What lies in the heap for now was scheduled before all that is due.
    if (!heap_.empty() && (heap_.front().time <= now_ || next_due_ == due_.size())) {
      const Event event = pop();
      now_ = event.time;
      resume(event.first);
    } else if (next_due_ < due_.size()) {
      resume(due_[next_due_++]);
      if (next_due_ == due_.size()) {
        due_.clear();
        next_due_ = 0;
      }
    } else {
      break;
    }
    start_tasks();
  }
}

std::size_t Simulation::failed() const {
  const auto found = std::ranges::find_if(
      tasks_, [](const Task& task) { return static_cast<bool>(task.failure()); });
  return static_cast<std::size_t>(found - tasks_.begin());
}

}  // namespace shiplap::engine
