// Files that people name: read, written, and what to say when that fails or when what is in them is
// wrong.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"

namespace shiplap {

struct SourceText {
  std::string file;  // what to call it in messages
  std::string text;

  // Without its folder: for titles.
  [[nodiscard]] std::string short_name() const;
};

// `-` is `in`, standard input. A byte order mark is left out. Throws InputError D004.
[[nodiscard]] SourceText read_text(const std::string& file, std::istream& in);

// All of it or nothing: until it is written, whatever was there before stays. Throws InputError
// D005; `flag` is where the name was given.
void write_text(const std::string& file, std::string_view text, std::string_view flag);
// Throws what write_text would, as far as that can be known before there is a text: to be said
// before hours of work. `-` and no name are always right.
void check_writable(const std::optional<std::string>& file, std::string_view flag);

// The same with file and excerpt, where only the line was known.
[[nodiscard]] Diagnostic placed(Diagnostic diagnostic, const SourceText& source);

// Does something with what was read, and says where in its text a problem lies.
template <class Do>
auto placing_errors(const SourceText& source, const Do& act) {
  try {
    return act();
  } catch (const MissingPart&) {
    throw;
  } catch (const InputError& error) {
    std::vector<Diagnostic> diagnostics = error.diagnostics();
    for (Diagnostic& diagnostic : diagnostics) diagnostic = placed(std::move(diagnostic), source);
    throw InputError(std::move(diagnostics));
  }
}

}  // namespace shiplap
