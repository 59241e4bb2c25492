// Long lists are folded: the first lines, and how many there are besides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct Fold {
  std::int64_t limit = 0;  // lines per list; 0: all
  TextLook look;

  // How many of `total` are shown. A single line more is shown rather than announced.
  [[nodiscard]] std::size_t shown(std::size_t total) const {
    const auto most = static_cast<std::size_t>(limit);
    return limit == 0 || total <= most + 1 ? total : most;
  }

  // "and 40 more; --limit 0 shows all", or nothing.
  [[nodiscard]] std::string rest(std::size_t total) const {
    if (shown(total) == total) return "";
    const auto left = static_cast<std::int64_t>(total - shown(total));
    return "and " + with_separators(left) + " more; --limit 0 shows all\n";
  }
};

}  // namespace shiplap::report
