// Decodes UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace shiplap {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;  // how many it takes in UTF-8: 1 to 4
  friend bool operator==(const CodePoint&, const CodePoint&) = default;
};

// Returns the first character of `text`, or nullopt if the text is empty or does not begin with a
// well-formed one (Unicode 15, table 3-7: no overlong forms, no surrogates, nothing past U+10FFFF).
[[nodiscard]] std::optional<CodePoint> first_code_point(std::string_view text);

}  // namespace shiplap
