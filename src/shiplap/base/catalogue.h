// Every diagnostic code there is, with the page that explains it. The pages are the files of
// docs/diagnostics/, compiled in, so that `shiplap explain` needs no installation.
#pragma once

#include <span>
#include <string_view>

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

}  // namespace shiplap
