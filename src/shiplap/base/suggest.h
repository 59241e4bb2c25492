// "did you mean": suggestions for mistyped names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiplap {

// The fewest insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`,
// each of one byte: the unrestricted Damerau-Levenshtein distance, a metric, in which letters may
// be inserted between swapped ones (Lowrance and Wagner, "An extension of the string-to-string
// correction problem", 1975).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

// Returns the one of `names` nearest to `typed`, ignoring case, or "" if none is near enough: at
// most a third of the letters of the longer one differ, or one of two. The first of equally near
// ones.
[[nodiscard]] std::string nearest(std::string_view typed, std::span<const std::string> names);

// A sentence for Diagnostic::help: "did you mean `w`?", or, if no name is near, "there are: a, b,
// c" (at most a dozen, then "and 30 more"), "there is only: a", or "there are none".
[[nodiscard]] std::string suggest(std::string_view typed, std::span<const std::string> names);

}  // namespace shiplap
