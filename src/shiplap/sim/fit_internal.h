// Do operations that meet agree in what they say of what they do together?
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

// Two ends of a message, or two members of a call.
[[nodiscard]] bool fit(const plan::Plan& plan, const Step& a, const Step& b);

// Two operations that met and do not fit.
struct Misfit {
  Place first;
  Place second;
  std::int32_t more = 0;  // members of the same call that do not fit the first either
};

// D631 for each, the first few; their order does not depend on the order in which they were found.
[[nodiscard]] std::vector<Diagnostic> misfit_problems(const LinkedProgram& linked,
                                                      std::vector<Misfit> misfits);

}  // namespace shiplap::sim
