// Dispatches as JSON, to keep, to send, and to check those that others made.
//
// A file holds one table, or several under the names q_forward, q_reverse, kv_forward, kv_reverse,
// with `attention` beside them. A table is written as the padded tensors of dense.h, nested arrays
// by field; num_recv_tokens and what follows from the others may be absent. "offset_unit" says
// "tokens" or "bytes" (then "row_bytes" is there too); absent, tokens are meant and the reader
// warns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/json.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/dense.h"

namespace shiplap::dispatch {

// Throws InputError D411 where the tensors would be too large.
[[nodiscard]] Json to_json(const Metadata& metadata);
[[nodiscard]] Json to_json(const QkvDispatch& dispatch);

struct NamedTable {
  std::string name;  // "q_forward"; "metadata" if it stood alone
  DenseMetadata table;
};

struct DispatchFile {
  std::vector<NamedTable> tables;
  std::optional<AttentionLayout> attention;
  std::vector<std::uint64_t> buffer_tokens;  // if it says so
  std::vector<Diagnostic> warnings;          // D415: no unit of offsets
};

// Throws InputError D010 (no JSON), D413 (a field that is missing, unknown or of a wrong kind),
// D401 (rows of different length).
[[nodiscard]] DispatchFile read_dispatch(std::string_view text, std::string_view file);

// All that can be checked with what the file has: each table's tensors, each table, the pairs, the
// whole.
[[nodiscard]] std::vector<Diagnostic> validate(const DispatchFile& file);

}  // namespace shiplap::dispatch
