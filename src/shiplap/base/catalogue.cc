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
    const std::string near = nearest(code, codes);
    problems.push_back({.code = "D006",
                        .what = fmt::format("unknown diagnostic code `{}`", code),
                        .help = near.empty() ? "`shiplap explain` lists all of them"
                                             : fmt::format("did you mean `{}`? `shiplap explain` "
                                                           "lists all of them",
                                                           near)});
  }
  if (!problems.empty()) throw InputError(std::move(problems));
  return entries;
}

}  // namespace shiplap
