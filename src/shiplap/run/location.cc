#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/run/location_internal.h"

namespace shiplap::run {
namespace {

Diagnostic placed(Diagnostic diagnostic, const plan::RankProgram& program, std::int32_t op) {
  const plan::flat::Operation& operation = program.operations[static_cast<std::size_t>(op)];
  if (!diagnostic.where.rank) diagnostic.where.rank = program.rank.value;
  if (diagnostic.where.line == 0) diagnostic.where.line = operation.source->origin.line;
  std::string& where = diagnostic.where.operation;
  const std::string here = program.describe(operation);
  where = where.empty() ? here : here + ", " + where;
  return diagnostic;
}

std::string in_words(const Diagnostic& diagnostic) {
  std::string text = diagnostic.what;
  if (!diagnostic.where.operation.empty()) text += " (" + diagnostic.where.operation + ")";
  if (!diagnostic.why.empty()) text += "; " + diagnostic.why;
  return text;
}

}  // namespace

void rethrow_located(const plan::RankProgram& program, std::int32_t op) {
  try {
    throw;
  } catch (const comm::DeadlinePassed& failure) {
    throw comm::DeadlinePassed(placed(failure.diagnostic(), program, op), failure.missing());
  } catch (const comm::RankFailed& failure) {
    throw comm::RankFailed(placed(failure.diagnostic(), program, op), failure.rank());
  } catch (const comm::Mismatch& failure) {
    throw comm::Mismatch(placed(failure.diagnostic(), program, op), failure.odd_ones());
  } catch (const comm::MessageTooLong& failure) {
    throw comm::MessageTooLong(placed(failure.diagnostic(), program, op));
  } catch (const comm::CommunicatorDead& failure) {
    throw comm::CommunicatorDead(placed(failure.diagnostic(), program, op));
  } catch (const InputError& error) {
    std::vector<Diagnostic> all = error.diagnostics();
    for (Diagnostic& one : all) one = placed(std::move(one), program, op);
    throw InputError(std::move(all));
  }
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

}  // namespace shiplap::run
