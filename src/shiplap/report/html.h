// Safe HTML markup. Text becomes markup only through escaped().
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

// Escapes text for an element or a quoted attribute. Control characters that HTML forbids become
// U+FFFD.
[[nodiscard]] std::string escaped(std::string_view text);

// A paragraph; empty if the text is.
[[nodiscard]] Html paragraph(std::string_view text);

}  // namespace shiplap::report
