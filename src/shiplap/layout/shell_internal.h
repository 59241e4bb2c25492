// Words of a shell's text, and what can be said of its conditions without running it.
#pragma once

#include <cctype>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {

inline bool is_name_letter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// A word of a command line, without its quotes.
struct Word {
  std::string text;
  bool first = false;    // of a command, or of a line
  bool command = false;  // of a command, not only of a line
  std::string unknown;   // a variable in it that the text does not assign
};

struct ShellText {
  std::vector<Word> words;
  std::vector<std::string> flag_variables;  // variables whose value has a flag
};
// The words of a command line or a script, in which variables that the text assigns are replaced by
// their values; these also become settings. Branches whose condition is false are left out. Reports
// what cannot be read, and conditions that are unknown. Lines need no `\` at their end.
[[nodiscard]] ShellText shell_words(std::string_view text, Findings& findings, Settings& variables);

// The value of a variable; none if it is no known integer.
using VariableLookup = std::function<std::optional<std::int64_t>(std::string_view)>;
// `$((text))`; none if it is unknown.
[[nodiscard]] std::optional<std::int64_t> evaluate_arithmetic(std::string_view text,
                                                              const VariableLookup& lookup);
// `[ words ]`, `[[ words ]] && ..`; none if it is unknown.
[[nodiscard]] std::optional<bool> evaluate_test(std::span<const Word> words);
// `*` and `?` in the pattern.
[[nodiscard]] bool matches(std::string_view text, std::string_view pattern);

}  // namespace shiplap::layout
