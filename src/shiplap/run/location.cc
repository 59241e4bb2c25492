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

Diagnostic add_location(Diagnostic diagnostic, const plan::RankProgram& program, std::int32_t op) {
  const Where here = program.where(program.operations[op]);
  Where& where = diagnostic.where;
  if (!where.rank) where.rank = here.rank;
  if (where.line == 0) {
    where.file = here.file;
    where.line = here.line;
    where.function = here.function;
  }
  where.operation =
      where.operation.empty() ? here.operation : here.operation + ", " + where.operation;
  return diagnostic;
}

// REQUIRES: called in an exception handler. Rethrows the exception with changed diagnostics.
template <class Change>
[[noreturn]] void rethrow_changed(const Change& change) {
  try {
    throw;
  } catch (const comm::TimeoutError& failure) {
    throw comm::TimeoutError(change(failure.diagnostic()), failure.missing(), failure.culprit());
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

std::string format_reason(const Diagnostic& diagnostic) {
  std::string text = diagnostic.what;
  if (!diagnostic.where.operation.empty()) text += " (" + diagnostic.where.operation + ")";
  if (!diagnostic.why.empty()) text += "; " + diagnostic.why;
  return text;
}

}  // namespace

void rethrow_with_location(const plan::RankProgram& program, std::int32_t op) {
  rethrow_changed([&](const Diagnostic& one) { return add_location(one, program, op); });
}

void rethrow_with_context(const std::string& what) {
  rethrow_changed([&](Diagnostic one) {
    std::string& where = one.where.operation;
    where = where.empty() ? what : what + ", " + where;
    return one;
  });
}

std::string failure_reason(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const comm::Failure& error) {
    return format_reason(error.diagnostic());
  } catch (const InputError& error) {
    return format_reason(error.diagnostics().front());
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

namespace {

void abort_with_reason(comm::Communicator& world, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const comm::RankFailed& error) {
    world.abort(error.diagnostic().why, error.culprit());
  } catch (const comm::TimeoutError& error) {
    world.abort(format_reason(error.diagnostic()),
                error.culprit().value_or(comm::Communicator::kNobody));
  } catch (const comm::Failure& error) {
    world.abort(format_reason(error.diagnostic()), error.culprit());
  } catch (...) {
    world.abort(failure_reason(failure));
  }
}

}  // namespace

void abort_with_failure(comm::Communicator& world, const std::exception_ptr& failure) {
  try {
    abort_with_reason(world, failure);
  } catch (const std::bad_alloc&) {
    world.abort("");
  }
}

}  // namespace shiplap::run
