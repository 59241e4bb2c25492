// Shared by the tests of this module: the diagnostics of expected errors.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::plan {

// Returns the diagnostics of the InputError that `function` throws. Fails the test if it throws
// none.
template <class Function>
std::vector<Diagnostic> diagnostics_of(const Function& function) {
  try {
    function();
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  ADD_FAILURE() << "no InputError was thrown";
  return {};
}

// Returns the first of them.
template <class Function>
Diagnostic diagnostic_of(const Function& function) {
  const std::vector<Diagnostic> all = diagnostics_of(function);
  return all.empty() ? Diagnostic{} : all.front();
}

}  // namespace shiplap::plan
