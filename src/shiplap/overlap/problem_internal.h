// Validation of a problem, and the split of its rows.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {

using Offsets = std::vector<std::int64_t>;

// Returns the offsets of an even split of `count` items into `parts`, and the end.
[[nodiscard]] Offsets split_offsets(std::int64_t count, std::int64_t parts);

// Returns the row offsets of the ranks, of the GEMM or of the scattered matrix (bulk), and of their
// chunks. Both include the end.
[[nodiscard]] Offsets rank_offsets(const Choice& choice, const Problem& problem);
[[nodiscard]] Offsets chunk_offsets(const Choice& choice, const Problem& problem);

// Returns the bytes of a value, without scales.
[[nodiscard]] inline std::int64_t bytes_in(const QuantFormat& format, DType type) {
  return bytes_of(is_high_precision(format) ? type : format.type);
}

// Throws InputError D801 if the problem is invalid.
void check_problem(const Choice& choice, const Problem& problem);

}  // namespace shiplap::overlap
