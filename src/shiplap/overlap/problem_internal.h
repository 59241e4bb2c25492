// Whether a problem makes sense, and how its rows are cut.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {

using Cuts = std::vector<std::int64_t>;

// Where `parts` parts of `count` things begin, and the end.
[[nodiscard]] Cuts cuts_of(std::int64_t count, std::int64_t parts);

// Where the rows of each rank begin: of the product, or of what is scattered beside it; and where
// their chunks do. Both with the end.
[[nodiscard]] Cuts rank_cuts(const Choice& choice, const Problem& problem);
[[nodiscard]] Cuts chunk_cuts(const Choice& choice, const Problem& problem);

// Bytes of a number, without what belongs to many.
[[nodiscard]] inline std::int64_t bytes_in(const Form& form, DType type) {
  return bytes_of(is_plain(form) ? type : form.type);
}

// Throws InputError D801.
void check_problem(const Choice& choice, const Problem& problem);

}  // namespace shiplap::overlap
