// Reads, writes and validates dispatches as JSON.
//
// A file holds one table, or several under the names q_forward, q_reverse, kv_forward, kv_reverse,
// and optionally `attention`. A table is the padded tensors of dense.h as nested arrays; derived
// fields such as num_recv_tokens may be absent. "offset_unit" is "tokens" or "bytes" ("bytes"
// requires "row_bytes"); if absent, tokens are assumed with a warning.
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

// Throws InputError D411 if the tensors would be too large.
[[nodiscard]] Json to_json(const Metadata& metadata);
[[nodiscard]] Json to_json(const QkvDispatch& dispatch);

// The bytes of a token: of its query, and of its key and value. In a file, `q_row_bytes` and
// `kv_row_bytes`.
struct TokenBytes {
  std::int64_t q = 0;
  std::int64_t kv = 0;
  friend bool operator==(const TokenBytes&, const TokenBytes&) = default;
};
[[nodiscard]] Json to_json(const QkvDispatch& dispatch, const TokenBytes& token_bytes);

struct NamedTable {
  std::string name;  // "q_forward"; "metadata" for a single table
  DenseMetadata table;
};

struct DispatchFile {
  std::vector<NamedTable> tables;
  std::optional<AttentionLayout> attention;
  std::vector<std::uint64_t> buffer_tokens;  // optional
  std::optional<TokenBytes> token_bytes;
  std::vector<Diagnostic> warnings;  // D415: missing offset_unit
};

// Throws InputError D010 (not JSON), D413 (a field is missing, unknown or of the wrong type), D401
// (ragged rows).
[[nodiscard]] DispatchFile read_dispatch(std::string_view text, std::string_view file);

// Checks everything that the file allows: the tensors of each table, each table, the pairs, the
// whole.
[[nodiscard]] std::vector<Diagnostic> validate(const DispatchFile& file);

}  // namespace shiplap::dispatch
