// Truncates long lists: prints the first lines and the number of the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "shiplap/base/units.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct Truncation {
  std::int64_t limit = 0;  // lines per list; 0: all
  TextStyle style;

  // How many of `total` lines are shown. A single excess line is shown instead of being counted.
  [[nodiscard]] std::size_t shown(std::size_t total) const {
    const auto max_lines = static_cast<std::size_t>(limit);
    return limit == 0 || total <= max_lines + 1 ? total : max_lines;
  }

  // "and 40 more; --limit 0 shows all", or "".
  [[nodiscard]] std::string rest(std::size_t total) const {
    if (shown(total) == total) return "";
    const auto left = static_cast<std::int64_t>(total - shown(total));
    return "and " + with_separators(left) + " more; --limit 0 shows all\n";
  }
};

}  // namespace shiplap::report
