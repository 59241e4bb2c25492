#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/run/location_internal.h"

namespace shiplap::run {
namespace {

Diagnostic placed(Diagnostic diagnostic, const plan::RankProgram& program, std::int32_t op) {
  const plan::flat::Operation& operation = program.operations[op];
  if (!diagnostic.where.rank) diagnostic.where.rank = program.rank.value;
  if (diagnostic.where.line == 0) diagnostic.where.line = operation.source->origin.line;
  std::string& where = diagnostic.where.operation;
  const std::string here = program.describe(operation);
  where = where.empty() ? here : here + ", " + where;
  return diagnostic;
}

// In a handler: throws what is handled once more, with its diagnostics changed.
template <class Change>
[[noreturn]] void rethrow_changed(const Change& change) {
  try {
    throw;
  } catch (const comm::DeadlinePassed& failure) {
    throw comm::DeadlinePassed(change(failure.diagnostic()), failure.missing(), failure.culprit());
  } catch (const comm::RankFailed& failure) {
    throw comm::RankFailed(change(failure.diagnostic()), failure.rank());
  } catch (const comm::Mismatch& failure) {
    throw comm::Mismatch(change(failure.diagnostic()), failure.outliers());
  } catch (const comm::MessageTooLong& failure) {
    throw comm::MessageTooLong(change(failure.diagnostic()));
  } catch (const comm::CommunicatorDead& failure) {
    throw comm::CommunicatorDead(change(failure.diagnostic()));
  } catch (const InputError& error) {
    std::vector<Diagnostic> all = error.diagnostics();
    for (Diagnostic& one : all) one = change(one);
    throw InputError(std::move(all));
  }
}

std::string in_words(const Diagnostic& diagnostic) {
  std::string text = diagnostic.what;
  if (!diagnostic.where.operation.empty()) text += " (" + diagnostic.where.operation + ")";
  if (!diagnostic.why.empty()) text += "; " + diagnostic.why;
  return text;
}

}  // namespace

void rethrow_located(const plan::RankProgram& program, std::int32_t op) {
  rethrow_changed([&](const Diagnostic& one) { return placed(one, program, op); });
}

void rethrow_within(const std::string& what) {
  rethrow_changed([&](Diagnostic one) {
    std::string& where = one.where.operation;
    where = where.empty() ? what : what + ", " + where;
    return one;
  });
}

std::string reason_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const comm::Failure& error) {
    return in_words(error.diagnostic());
  } catch (const InputError& error) {
    return in_words(error.diagnostics().front());
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of no known type";
  }
}

namespace {

void leave_with_reason(comm::Communicator& world, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const comm::RankFailed& error) {
    world.leave(error.diagnostic().why, error.culprit());
  } catch (const comm::DeadlinePassed& error) {
    world.leave(in_words(error.diagnostic()),
                error.culprit().value_or(comm::Communicator::kNobody));
  } catch (const comm::Failure& error) {
    world.leave(in_words(error.diagnostic()), error.culprit());
  } catch (...) {
    world.leave(reason_of(failure));
  }
}

}  // namespace

void leave(comm::Communicator& world, const std::exception_ptr& failure) {
  try {
    leave_with_reason(world, failure);
  } catch (const std::bad_alloc&) {
    world.leave("");
  }
}

}  // namespace shiplap::run
