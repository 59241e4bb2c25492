// All diagnostic codes with their pages. The pages are the files of docs/diagnostics/, embedded in
// the library, so that `shiplap explain` needs no data files.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shiplap {

struct CatalogueEntry {
  std::string_view code;   // "D101"
  std::string_view title;  // the first line of the page, without "# D101: "
  std::string_view page;   // the whole page, Markdown
};

// Sorted by code.
[[nodiscard]] std::span<const CatalogueEntry> catalogue();

// Returns null if there is no such code. Ignores case.
[[nodiscard]] const CatalogueEntry* find_in_catalogue(std::string_view code);

// Returns the pages of codes as users paste them: "D101", or "error[D101]:". Throws InputError
// D006.
[[nodiscard]] std::vector<const CatalogueEntry*> find_pages(const std::vector<std::string>& words);

}  // namespace shiplap
