#include "shiplap/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace shiplap {
namespace {

constexpr std::size_t kMaxListed = 12;

// The distances between all prefixes of two strings, including the empty ones.
class DistanceTable {
 public:
  DistanceTable(std::size_t rows, std::size_t columns)
      : columns_(columns), cells_(rows * columns, 0) {}
  int& operator()(std::size_t row, std::size_t column) { return cells_[row * columns_ + column]; }

 private:
  std::size_t columns_;
  std::vector<int> cells_;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// The maximum number of edits for a suggestion, by the length of the longer word.
std::size_t max_edits(std::size_t length) { return length == 2 ? 1 : length / 3; }

std::string join_names(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names.first(std::min(names.size(), kMaxListed))) {
    if (!list.empty()) list += ", ";
    list += name;
  }
  if (names.size() > kMaxListed) list += fmt::format(" and {} more", names.size() - kMaxListed);
  return list;
}

}  // namespace

// d(i, j) is the distance between the first i letters of `a` and the first j of `b`. The last step
// is an insertion, a deletion, a substitution, or a swap: then everything between the two swapped
// letters, which were last seen at `row` and `column`, was deleted from `a` and inserted in `b`.
int edit_distance(std::string_view a, std::string_view b) {
  DistanceTable d(a.size() + 1, b.size() + 1);
  for (std::size_t i = 0; i <= a.size(); ++i) d(i, 0) = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d(0, j) = static_cast<int>(j);

  std::array<std::size_t, 256> last_row{};  // where each letter was last seen in `a`; 0: nowhere
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t column = 0;  // where a[i - 1] was last seen in `b`
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t row = last_row[static_cast<unsigned char>(b[j - 1])];
      const bool same = a[i - 1] == b[j - 1];
      int best = std::min({d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (same ? 0 : 1)});
      if (row > 0 && column > 0) {
        const auto between = static_cast<int>((i - row - 1) + (j - column - 1));
        best = std::min(best, d(row - 1, column - 1) + between + 1);
      }
      d(i, j) = best;
      if (same) column = j;
    }
    last_row[static_cast<unsigned char>(a[i - 1])] = i;
  }
  return d(a.size(), b.size());
}

std::string nearest(std::string_view typed, std::span<const std::string> names) {
  const std::string wanted = lower(typed);
  const std::string* best = nullptr;
  std::size_t fewest_edits = 0;
  for (const std::string& name : names) {
    const auto [shorter, longer] = std::minmax({wanted.size(), name.size()});
    // Skip names whose length alone exceeds the limit.
    if (longer - shorter > max_edits(longer)) continue;
    const auto wrong = static_cast<std::size_t>(edit_distance(wanted, lower(name)));
    if (wrong > max_edits(longer) || (best != nullptr && wrong >= fewest_edits)) continue;
    best = &name;
    fewest_edits = wrong;
  }
  return best == nullptr ? std::string() : *best;
}

std::string suggest(std::string_view typed, std::span<const std::string> names) {
  if (names.empty()) return "there are none";
  const std::string near = nearest(typed, names);
  if (!near.empty()) return fmt::format("did you mean `{}`?", near);
  if (names.size() == 1) return "there is only: " + names[0];
  return "there are: " + join_names(names);
}

}  // namespace shiplap
