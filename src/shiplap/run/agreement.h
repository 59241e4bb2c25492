// Do all ranks hold the same tables? By one hash for each field, so that those that do not can be
// told where they differ.
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

// `hashes` has those of all fields of the first rank, then of the second, ..; ranks are called as
// `world_ranks` says. D420 if any differs from what most have; of equally many, from the first.
[[nodiscard]] std::optional<Diagnostic> disagreement(std::span<const TableField> fields,
                                                     std::span<const std::int64_t> hashes,
                                                     std::span<const int> world_ranks);

}  // namespace shiplap::run
