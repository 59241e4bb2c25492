// Explains JSON syntax errors.
//
// The parser only reports that it stopped. These functions scan the text again from the last parsed
// token and report the expected and the found token.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shiplap/base/diagnostic.h"

namespace shiplap {

struct JsonSource {
  std::string_view text;
  std::string_view file;  // its name in messages
};

// A range of bytes of the source.
struct JsonSpan {
  std::size_t offset = 0;
  std::size_t length = 1;
};

// The last parsed token.
enum class JsonToken { none, open_array, open_object, key, item, member, whole };

// The position of the parser.
struct JsonParseState {
  JsonToken last = JsonToken::none;
  std::size_t end = 0;                // just after that token
  std::optional<std::size_t> opened;  // the innermost open bracket
};

// A D010 at `span`.
[[nodiscard]] Diagnostic json_diagnostic(const JsonSource& source, JsonSpan span, std::string what);

// The error at which the parser stopped in `state`.
[[nodiscard]] Diagnostic explain_json_error(const JsonSource& source, const JsonParseState& state);

// A D010 for the duplicate `key` at `span`.
[[nodiscard]] Diagnostic duplicate_key_error(const JsonSource& source, JsonSpan span,
                                             std::string_view key);

// The end of the number that begins at `begin`; `begin` itself if there is none.
[[nodiscard]] std::size_t end_of_json_number(std::string_view text, std::size_t begin);

// The end of the white space that begins at `begin`.
[[nodiscard]] std::size_t end_of_json_space(std::string_view text, std::size_t begin);

}  // namespace shiplap
