#include "shiplap/base/catalogue.h"

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
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

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool same_apart_from_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return upper(x) == upper(y); });
}

}  // namespace

std::span<const CatalogueEntry> catalogue() {
  static const std::vector<CatalogueEntry> entries = read_pages();
  return entries;
}

const CatalogueEntry* find_in_catalogue(std::string_view code) {
  for (const CatalogueEntry& candidate : catalogue()) {
    if (same_apart_from_case(candidate.code, code)) return &candidate;
  }
  return nullptr;
}

}  // namespace shiplap
