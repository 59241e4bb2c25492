// Mismatches between matched operations: do the two ends of a message, or the members of a
// collective call, agree?
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Whether two ends of a message, or two members of a call, agree in kind, operator, scale, root,
// size, element type, split and table; of a message, in size and type.
[[nodiscard]] bool compatible(const plan::Plan& plan, const Step& a, const Step& b);

// Two matched operations that are not compatible.
struct Mismatch {
  OperationId first;
  OperationId second;
  std::int32_t more = 0;  // further members of the call that are not compatible with `first`
};

// Returns D631 for the first few of them. Their order does not depend on the order in which they
// were found.
[[nodiscard]] std::vector<Diagnostic> mismatch_problems(const LinkedProgram& linked,
                                                        std::vector<Mismatch> mismatches);

}  // namespace shiplap::sim
