// The completion tracker: one state per operation behind one mutex and one condition variable.
//
// Invariants:
// - States only advance: pending -> started -> complete, until reset().
// - incomplete_[batch] counts the members of the batch that are not complete. At 0 the batch is
//   complete. A batch without members is completed by the thread that starts it.
// - After cancel() every blocked and every later wait throws Cancelled, so a failure on one thread
//   cannot leave another one blocked here.
// - progress_ is the last time an operation completed or a computation ended. A message times out
//   only if everything on the rank has been idle for the timeout; otherwise a rank that computes
//   for long would report its peers as missing.
#include <algorithm>

#include "shiplap/run/completion_tracker_internal.h"

namespace shiplap::run {

CompletionTracker::CompletionTracker(const plan::RankProgram& program) : program_(program) {
  reset();
}

void CompletionTracker::reset() {
  const std::lock_guard lock(mutex_);
  states_.assign(program_.operations.size(), OperationState::pending);
  incomplete_.assign(program_.operations.size(), 0);
  for (const plan::flat::Operation& op : program_.operations) {
    if (op.batch >= 0) ++incomplete_[op.batch];
  }
  cancelled_ = false;
  progress_ = now();
}

bool CompletionTracker::is_ready_locked(const plan::flat::Operation& op) const {
  return std::ranges::all_of(program_.after(op), [&](std::int32_t other) {
    return states_[other] == OperationState::complete;
  });
}

bool CompletionTracker::is_ready(const plan::flat::Operation& op) {
  const std::lock_guard lock(mutex_);
  return is_ready_locked(op);
}

bool CompletionTracker::is_complete(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  return states_[op] == OperationState::complete;
}

void CompletionTracker::await_dependencies(const plan::flat::Operation& op) {
  await([&] { return is_ready_locked(op); });
}

void CompletionTracker::await_start(std::int32_t op) {
  await([&] { return states_[op] != OperationState::pending; });
}

void CompletionTracker::await_completion(std::int32_t op) {
  await([&] { return states_[op] == OperationState::complete; });
}

void CompletionTracker::start(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  states_[op] = OperationState::started;
  changed_.notify_all();
}

void CompletionTracker::complete_locked(std::int32_t op) {
  states_[op] = OperationState::complete;
  const std::int32_t batch = program_.operations[op].batch;
  if (batch >= 0 && --incomplete_[batch] == 0) complete_locked(batch);
}

void CompletionTracker::complete(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  progress_ = now();
  complete_locked(op);
  changed_.notify_all();
}

void CompletionTracker::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

}  // namespace shiplap::run
