// Validates dispatches. Every violation is a diagnostic with the table, the rank, the field and, if
// it concerns one row, the sequence.
//
// Gaps: a single table may leave gaps in a destination (e.g. for alignment). A pair may not: the
// reverse table reads the destination from its beginning without gaps (D408).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

struct ValidateOptions {
  std::string table = "metadata";  // its name in diagnostics
  // Capacity of the receive buffer of each rank in tokens (of a pair: forward; of a whole dispatch:
  // for queries). Empty: unknown, not checked.
  std::vector<std::uint64_t> buffer_tokens;
  std::vector<std::uint64_t> kv_buffer_tokens;  // of a whole dispatch: for keys and values
  // Findings of one code in one table beyond this many are counted, not listed.
  int max_per_code = 4;
};

// Validates one table: tokens without destination (D402), a rank that does not exist (D403), a
// destination outside the buffer (D404) or beyond 32 bits (D410), overlapping destinations (D405;
// with ArrivalMode::summed, only of copies of one row).
[[nodiscard]] std::vector<Diagnostic> validate(const Metadata& metadata,
                                               const ValidateOptions& options = {});

// Validates a pair: each table is valid, and the second inverts the first. Every query returns to
// where it came from (D407); gaps in a destination and tokens that do not return are D408. Every
// copy of keys and values goes home once and is summed there, not placed (D412). Nothing else is
// summed (D412).
[[nodiscard]] std::vector<Diagnostic> validate_queries(const MetadataPair& pair,
                                                       const ValidateOptions& options = {});
[[nodiscard]] std::vector<Diagnostic> validate_keys(const MetadataPair& pair,
                                                    const ValidateOptions& options = {});

// Validates a whole dispatch, including causality (D409): the keys of an item are its document up
// to its last query, in order, so the last keys are those of its own queries. Document numbers are
// not needed: the position of a token follows from the item in which it is a query, and all items
// that hold its key must agree. (A dispatch that splits the tokens into other documents than
// intended, but consistently, is valid.) An item without queries may hold keys, the prefix of a
// document. The layout must match the tables (D401).
[[nodiscard]] std::vector<Diagnostic> validate(const QkvDispatch& dispatch,
                                               const ValidateOptions& options = {});

}  // namespace shiplap::dispatch
