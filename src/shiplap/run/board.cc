#include <algorithm>

#include "shiplap/run/board_internal.h"

namespace shiplap::run {

Board::Board(const plan::RankProgram& program) : program_(program) { reset(); }

void Board::reset() {
  const std::lock_guard lock(mutex_);
  states_.assign(program_.operations.size(), State::listed);
  incomplete_.assign(program_.operations.size(), 0);
  for (const plan::flat::Operation& op : program_.operations) {
    if (op.batch >= 0) ++incomplete_[op.batch];
  }
  stopped_ = false;
  progress_ = now();
}

bool Board::is_ready_locked(const plan::flat::Operation& op) const {
  return std::ranges::all_of(program_.after(op),
                             [&](std::int32_t other) { return states_[other] == State::complete; });
}

bool Board::is_ready(const plan::flat::Operation& op) {
  const std::lock_guard lock(mutex_);
  return is_ready_locked(op);
}

bool Board::is_complete(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  return states_[op] == State::complete;
}

void Board::await_dependencies(const plan::flat::Operation& op) {
  await([&] { return is_ready_locked(op); });
}

void Board::await_start(std::int32_t op) {
  await([&] { return states_[op] != State::listed; });
}

void Board::await_completion(std::int32_t op) {
  await([&] { return states_[op] == State::complete; });
}

void Board::start(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  states_[op] = State::started;
  changed_.notify_all();
}

void Board::complete_locked(std::int32_t op) {
  states_[op] = State::complete;
  const std::int32_t batch = program_.operations[op].batch;
  if (batch >= 0 && --incomplete_[batch] == 0) complete_locked(batch);
}

void Board::complete(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  progress_ = now();
  complete_locked(op);
  changed_.notify_all();
}

void Board::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace shiplap::run
