// The ways things go wrong. An answer of "no" is a value, never one of these.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap {

// The caller gave us something we cannot work with: a bad file, flag or argument. Thrown once, at
// the edge, with at least one diagnostic.
class InputError : public std::runtime_error {
 public:
  explicit InputError(Diagnostic diagnostic);
  explicit InputError(std::vector<Diagnostic> diagnostics);
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// A part that this machine lacks (an MPI, a library) is needed to go on.
class MissingPart : public InputError {
 public:
  using InputError::InputError;
};

// We broke our own promise. Nobody catches this except `main` and the bindings.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Checks a promise of ours. Always on: a wrong plan costs more than the branch.
// (The builtins are std::source_location, spelled so that every clang understands it.)
inline void ensure(bool holds, std::string_view promise, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (holds) return;
  throw InternalError(std::string(file) + ":" + std::to_string(line) +
                      ": broken promise: " + std::string(promise));
}

}  // namespace shiplap
