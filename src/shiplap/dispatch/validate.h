// Is a dispatch sound? Every breach is a diagnostic that names the table, the rank and the field,
// and, where it lies in one row, the sequence.
//
// Holes: a table alone may leave parts of a destination untouched (somebody may align pieces). A
// pair may not: the way back reads the destination from its beginning without gaps, so a hole has
// no row there (D408).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/dispatch/compute.h"

namespace shiplap::dispatch {

struct ValidateOptions {
  std::string table = "metadata";  // what to call it
  // Tokens that fit into the receiving buffer of each rank (of a pair: on the way there; of a whole
  // dispatch: for queries). Empty: not known, so not checked.
  std::vector<std::uint64_t> buffer_tokens;
  std::vector<std::uint64_t> kv_buffer_tokens;  // of a whole dispatch: for keys and values
  // Findings of one code in one table beyond this many are counted, not listed.
  int most_of_a_kind = 4;
};

// One table by itself: a row with tokens that go nowhere (D402), a rank that does not exist (D403),
// a place outside the buffer (D404) or beyond 32 bits (D410), two pieces in one place (D405; where
// arrival is summed, only those of one row).
[[nodiscard]] std::vector<Diagnostic> validate(const Metadata& metadata,
                                               const ValidateOptions& options = {});

// Two tables: each sound, and the second undoes the first. For queries every token comes back to
// where it was (D407); a destination with holes or a row that has no way back is D408. For keys and
// values every copy goes home once, and there they are summed, not placed (D412). Nothing else is
// summed (D412).
[[nodiscard]] std::vector<Diagnostic> validate_queries(const MetadataPair& pair,
                                                       const ValidateOptions& options = {});
[[nodiscard]] std::vector<Diagnostic> validate_keys(const MetadataPair& pair,
                                                    const ValidateOptions& options = {});

// All of it, and causality (D409): the keys of an item are the whole document up to its last query,
// in order, so that the last keys are those of its own queries. No document numbers are needed: a
// token's place in its document follows from the item in which it is a query, and all items that
// hold its key must agree. (So a dispatch that divides the tokens into documents in another way
// than was meant, consistently, is sound.) An item without queries may hold keys, the beginning of
// a document. The layout must match the tables (D401).
[[nodiscard]] std::vector<Diagnostic> validate(const QkvDispatch& dispatch,
                                               const ValidateOptions& options = {});

}  // namespace shiplap::dispatch
