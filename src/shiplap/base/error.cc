#include "shiplap/base/error.h"

#include <utility>

namespace shiplap {
namespace {

std::string message(const std::vector<Diagnostic>& diagnostics) {
  ensure(!diagnostics.empty(), "an InputError has at least one diagnostic");
  return render(diagnostics);
}

}  // namespace

InputError::InputError(Diagnostic diagnostic)
    : InputError(std::vector<Diagnostic>{std::move(diagnostic)}) {}

InputError::InputError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(message(diagnostics)), diagnostics_(std::move(diagnostics)) {}

}  // namespace shiplap
