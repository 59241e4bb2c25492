// The completion tracker: one atomic state per operation, and one counter of changes to wait on.
//
// Invariants:
// - States only advance: pending -> started -> complete, until reset().
// - A state is stored before `changes_` rises. A waiting thread reads `changes_` before the states,
//   so it never misses a change. Whoever sees a state sees what was written before it was stored:
//   the rows of a computation, or of a message.
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

CompletionTracker::CompletionTracker(const plan::RankProgram& program)
    : program_(program),
      states_(program.operations.size()),
      incomplete_(program.operations.size()) {
  reset();
}

void CompletionTracker::reset() {
  for (auto& state : states_) state = OperationState::pending;
  for (auto& count : incomplete_) count = 0;
  for (const plan::flat::Operation& op : program_.operations) {
    if (op.batch >= 0) ++incomplete_[op.batch];
  }
  cancelled_ = false;
  progress_ = now();
}

bool CompletionTracker::is_ready(const plan::flat::Operation& op) const {
  return std::ranges::all_of(program_.after(op),
                             [&](std::int32_t other) { return is_complete(other); });
}

void CompletionTracker::await_dependencies(const plan::flat::Operation& op) {
  await([&] { return is_ready(op); });
}

void CompletionTracker::await_start(std::int32_t op) {
  await([&] { return states_[op] != OperationState::pending; });
}

void CompletionTracker::await_completion(std::int32_t op) {
  await([&] { return is_complete(op); });
}

void CompletionTracker::start(std::int32_t op) {
  states_[op] = OperationState::started;
  notify();
}

void CompletionTracker::complete(std::int32_t op) {
  progress_ = now();
  states_[op] = OperationState::complete;
  const std::int32_t batch = program_.operations[op].batch;
  if (batch >= 0 && --incomplete_[batch] == 0) complete(batch);
  notify();
}

void CompletionTracker::cancel() {
  cancelled_ = true;
  notify();
}

}  // namespace shiplap::run
