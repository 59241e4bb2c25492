// Markup that may go into a page as it is. Text becomes markup only by being escaped.
#pragma once

#include <string>
#include <string_view>

namespace shiplap::report {

struct Html {
  std::string markup;
  friend bool operator==(const Html&, const Html&) = default;

  Html& operator+=(const Html& more) {
    markup += more.markup;
    return *this;
  }
};

// Text that reads as it is written, in an element or in a quoted attribute. Control characters that
// HTML forbids become U+FFFD.
[[nodiscard]] std::string escaped(std::string_view text);

// A paragraph of text; nothing for no text.
[[nodiscard]] Html paragraph(std::string_view text);

}  // namespace shiplap::report
