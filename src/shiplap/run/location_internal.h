// Adds the rank and operation of the plan to exceptions.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/plan/expand.h"

namespace shiplap::run {

// REQUIRES: called in an exception handler. Rethrows the exception with rank and operation added.
[[noreturn]] void rethrow_with_location(const plan::RankProgram& program, std::int32_t op);

// The same, with `what` prefixed to the operation.
[[noreturn]] void rethrow_with_context(const std::string& what);

template <class Act>
void with_location(const plan::RankProgram& program, std::int32_t op, const Act& act) {
  try {
    act();
  } catch (const std::exception&) {
    rethrow_with_location(program, op);
  }
}

// Returns the text that other ranks get about a failure.
[[nodiscard]] std::string failure_reason(const std::exception_ptr& failure);
// Aborts `world` and notifies the other ranks of the root cause: the rank that failed first.
void abort_with_failure(comm::Communicator& world, const std::exception_ptr& failure);

}  // namespace shiplap::run
