// Every diagnostic code there is, with the page that explains it. The pages are the files of
// docs/diagnostics/, compiled in, so that `shiplap explain` needs no installation.
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

// In order of the codes.
[[nodiscard]] std::span<const CatalogueEntry> catalogue();

// Null if there is no such code. Upper and lower case are the same.
[[nodiscard]] const CatalogueEntry* find_in_catalogue(std::string_view code);

// The entries of codes as people paste them: "D101", or "error[D101]:". Throws InputError D006.
[[nodiscard]] std::vector<const CatalogueEntry*> look_up(const std::vector<std::string>& words);

}  // namespace shiplap
