// What the tests of this module share: how to ask for a refusal.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::plan {

// All that is said when `act` is refused; a failure of the test if it is not.
template <class Act>
std::vector<Diagnostic> refusals(const Act& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

// The first of them.
template <class Act>
Diagnostic refusal(const Act& act) {
  const std::vector<Diagnostic> all = refusals(act);
  return all.empty() ? Diagnostic{} : all.front();
}

}  // namespace shiplap::plan
