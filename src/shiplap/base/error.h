// Exceptions. A negative answer is a return value, never an exception.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap {

// The caller passed an invalid file, flag or argument. Thrown at the API boundary, with at least
// one diagnostic.
class InputError : public std::runtime_error {
 public:
  explicit InputError(Diagnostic diagnostic);
  explicit InputError(std::vector<Diagnostic> diagnostics);
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// A required dependency (an MPI, a library) or resource is missing on this machine.
class MissingDependency : public InputError {
 public:
  using InputError::InputError;
};

// A bug in Shiplap: an invariant does not hold. Caught only by `main` and the bindings.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws InternalError unless the invariant `holds`. Always enabled: a wrong plan costs more than
// the branch.
// (The builtins are std::source_location, spelled so that every clang understands it.)
inline void ensure(bool holds, std::string_view invariant, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (holds) return;
  throw InternalError(std::string(file) + ":" + std::to_string(line) +
                      ": invariant violated: " + std::string(invariant));
}

}  // namespace shiplap
