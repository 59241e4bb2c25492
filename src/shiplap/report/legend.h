// The legend of a figure. A colour has the same meaning in every report.
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
  pale,       // some document, in part
  intensity,  // communication, from none to much
  update,
  hidden,   // communication overlapped with computation
  exposed,  // communication that is not overlapped
  suspect,  // perhaps wrong
  absent,   // no data
  near,     // waits for what is wrong
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
