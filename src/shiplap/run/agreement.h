// Checks that all ranks hold the same dispatch tables, by one hash per field, so that a mismatch
// can be reported by field.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/dispatch/compute.h"

namespace shiplap::run {

struct TableField {
  std::string name;  // "q_forward seq_len"
  std::int64_t hash = 0;
};
[[nodiscard]] std::vector<TableField> table_fields(const dispatch::QkvDispatch& dispatch);

// `hashes` holds the hashes of all fields of the first rank, then of the second, ..; `world_ranks`
// are the ranks in diagnostics. Returns D420 if a rank differs from the majority (if tied, from the
// first).
[[nodiscard]] std::optional<Diagnostic> metadata_mismatch(std::span<const TableField> fields,
                                                          std::span<const std::int64_t> hashes,
                                                          std::span<const int> world_ranks);

}  // namespace shiplap::run
