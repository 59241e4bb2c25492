// What is wrong with a text that does not read as JSON, in words that help to mend it.
//
// The reader knows only that it had to stop. This looks at the text again, from the last token that
// was understood, and says what was found there and what was expected.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shiplap/base/diagnostic.h"

namespace shiplap {

struct JsonSource {
  std::string_view text;
  std::string_view file;  // what to call it
};

// Some bytes of the source.
struct JsonSpan {
  std::size_t offset = 0;
  std::size_t length = 1;
};

// The last token that was understood.
enum class JsonToken { none, open_array, open_object, key, item, member, whole };

// How far the reader came.
struct JsonStop {
  JsonToken last = JsonToken::none;
  std::size_t end = 0;                // just behind that token
  std::optional<std::size_t> opened;  // the innermost bracket that is still open
};

// A D010 that points at `span`.
[[nodiscard]] Diagnostic json_diagnostic(const JsonSource& source, JsonSpan span, std::string what);

// Why the reader could not go on from `stop`.
[[nodiscard]] Diagnostic explain_json_fault(const JsonSource& source, const JsonStop& stop);

// That an object has `key`, which stands at `span`, already.
[[nodiscard]] Diagnostic explain_repeated_key(const JsonSource& source, JsonSpan span,
                                              std::string_view key);

// Just behind the number that begins at `begin`; `begin` itself if none does.
[[nodiscard]] std::size_t end_of_json_number(std::string_view text, std::size_t begin);

// Just behind the white space that begins at `begin`.
[[nodiscard]] std::size_t end_of_json_space(std::string_view text, std::size_t begin);

}  // namespace shiplap
