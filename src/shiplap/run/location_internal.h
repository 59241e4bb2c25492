// Says of a failure in which operation of the plan it happened.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/plan/expand.h"

namespace shiplap::run {

// In a handler: throws what is handled once more, with rank and operation where it has none.
[[noreturn]] void rethrow_located(const plan::RankProgram& program, std::int32_t op);

// The same with the name of what it happened in, before the operation.
[[noreturn]] void rethrow_within(const std::string& what);

template <class Act>
void located(const plan::RankProgram& program, std::int32_t op, const Act& act) {
  try {
    act();
  } catch (const std::exception&) {
    rethrow_located(program, op);
  }
}

// What to tell the other ranks about a failure.
[[nodiscard]] std::string reason_of(const std::exception_ptr& failure);
// Leaves, and tells the others of whoever was the first to fail.
void leave(comm::Communicator& world, const std::exception_ptr& failure);

}  // namespace shiplap::run
