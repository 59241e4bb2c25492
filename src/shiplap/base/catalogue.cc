#include "shiplap/base/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap_embedded_pages.h"

namespace shiplap {
namespace {

// Reads the first line of a page, "# D010: title".
CatalogueEntry entry(const embedded::File& file) {
  const std::string_view code = file.name.substr(0, file.name.find('.'));
  std::string_view title = file.content.substr(0, file.content.find('\n'));
  const std::string prefix = "# " + std::string(code) + ": ";
  ensure(title.starts_with(prefix), "the page of a diagnostic begins with `" + prefix + "title`");
  title.remove_prefix(prefix.size());
  return {.code = code, .title = title, .page = file.content};
}

std::vector<CatalogueEntry> read_pages() {
  std::vector<CatalogueEntry> entries;
  for (const embedded::File& file : embedded::diagnostics_pages()) entries.push_back(entry(file));
  std::sort(entries.begin(), entries.end(),
            [](const CatalogueEntry& a, const CatalogueEntry& b) { return a.code < b.code; });
  return entries;
}

char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return to_upper(x) == to_upper(y); });
}

std::string bare_code(const std::string& word) {
  const std::size_t open = word.find('[');
  const std::size_t close = word.find(']', open == word.npos ? 0 : open);
  if (open == word.npos || close == word.npos) return word;
  return word.substr(open + 1, close - open - 1);
}

bool is_letter(char c) { return to_upper(c) >= 'A' && to_upper(c) <= 'Z'; }

// How often a word of the text begins with `word`.
int count_words(std::string_view text, std::string_view word) {
  const auto same = [](char x, char y) { return to_upper(x) == to_upper(y); };
  int count = 0;
  auto at = text.begin();
  while ((at = std::search(at, text.end(), word.begin(), word.end(), same)) != text.end()) {
    if (at == text.begin() || !is_letter(at[-1])) ++count;
    ++at;
  }
  return count;
}

// The pages that contain the word most often, a title counting as much as ten sentences:
// "D720 (a deadlock), D630 (deadlock in the replay)". "" if there are none.
std::string pages_about(std::string_view word) {
  constexpr std::size_t kMaxListed = 5;
  constexpr int kTitleWeight = 10;
  std::vector<std::pair<int, const CatalogueEntry*>> found;
  if (word.size() < 3 || !std::ranges::all_of(word, is_letter)) return "";
  for (const CatalogueEntry& entry : catalogue()) {
    const int score = kTitleWeight * count_words(entry.title, word) + count_words(entry.page, word);
    if (score > 0) found.emplace_back(-score, &entry);
  }
  std::ranges::stable_sort(found, {}, &std::pair<int, const CatalogueEntry*>::first);
  std::string list;
  for (std::size_t k = 0; k < std::min(found.size(), kMaxListed); ++k) {
    const CatalogueEntry& entry = *found[k].second;
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", entry.code, entry.title);
  }
  return list;
}

std::string unknown_code_help(const std::string& code, const std::vector<std::string>& codes) {
  const std::string near = nearest(code, codes);
  if (!near.empty()) {
    return fmt::format("did you mean `{}`? `shiplap explain` lists all of them", near);
  }
  const std::string about = pages_about(code);
  return about.empty() ? "`shiplap explain` lists all of them"
                       : fmt::format("pages about it: {}", about);
}

}  // namespace

std::span<const CatalogueEntry> catalogue() {
  static const std::vector<CatalogueEntry> entries = read_pages();
  return entries;
}

const CatalogueEntry* find_in_catalogue(std::string_view code) {
  for (const CatalogueEntry& candidate : catalogue()) {
    if (equals_ignoring_case(candidate.code, code)) return &candidate;
  }
  return nullptr;
}

std::vector<const CatalogueEntry*> find_pages(const std::vector<std::string>& words) {
  std::vector<const CatalogueEntry*> entries;
  std::vector<Diagnostic> problems;
  std::vector<std::string> codes;
  for (const CatalogueEntry& entry : catalogue()) codes.emplace_back(entry.code);
  for (const std::string& word : words) {
    const std::string code = bare_code(word);
    if (const CatalogueEntry* entry = find_in_catalogue(code)) {
      entries.push_back(entry);
      continue;
    }
    problems.push_back({.code = "D006",
                        .what = fmt::format("unknown diagnostic code `{}`", code),
                        .help = unknown_code_help(code, codes)});
  }
  if (!problems.empty()) throw InputError(std::move(problems));
  return entries;
}

}  // namespace shiplap
