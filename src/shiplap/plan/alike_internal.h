// Whether ranks do the same operations as their representative.
#pragma once

#include "shiplap/plan/expand.h"
#include "shiplap/plan/link.h"

namespace shiplap::plan {

// Expands the images_of() `options.symmetry`. Throws Asymmetric if one of them has another template
// than `steps`, or if a message leaves the representatives. Throws InputError if one of them has no
// expansion.
void throw_if_unlike(const RankProgram& representative, const RankTemplate& steps,
                     const LinkOptions& options);

}  // namespace shiplap::plan
