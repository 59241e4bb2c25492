// What the colours of a picture mean. Each means the same in every report.
#pragma once

#include <string>
#include <vector>

#include "shiplap/report/html.h"

namespace shiplap::report {

enum class Swatch {
  computation,
  communication,
  waiting,
  memory,
  wrong,
  ramp,       // documents or layers, in their order
  solid,      // some document
  pale,       // some document, less of it
  intensity,  // communication, from nothing to much
  update,
  hidden,   // communication, with computation beside it
  exposed,  // communication, without
};

struct Legend {
  struct Entry {
    Swatch swatch = Swatch::computation;
    std::string text;
  };
  std::vector<Entry> entries;
};
[[nodiscard]] Html to_html(const Legend& legend);

}  // namespace shiplap::report
