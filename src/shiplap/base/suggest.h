// "did you mean": the names that someone who mistyped may have had in mind.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiplap {

// The fewest insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`,
// each of one byte. This is the unrestricted distance, a metric: letters may be inserted between
// swapped ones (Lowrance and Wagner, "An extension of the string-to-string correction problem",
// 1975).
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);

// The one of `names` nearest to `typed`, or nothing ("") when none is near enough to be meant: at
// most a third of the letters of the longer one wrong, case apart, or one of two. The first of
// equally near ones.
[[nodiscard]] std::string nearest(std::string_view typed, std::span<const std::string> names);

// A sentence for Diagnostic::help: "did you mean `w`?", or, when nothing is near, "there are: a, b,
// c" (at most a dozen, then "and 30 more"), "there is only: a", or "there are none".
[[nodiscard]] std::string suggest(std::string_view typed, std::span<const std::string> names);

}  // namespace shiplap
