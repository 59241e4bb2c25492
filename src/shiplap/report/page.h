// A report page: one self-contained HTML file without network access, for light and dark themes,
// small screens and print.
//
// The title is the main result. Below are the key numbers and the assumptions, then the panels with
// figures and tables, and last the command that created it. Output is deterministic.
#pragma once

#include <string>
#include <vector>

#include "shiplap/report/html.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

struct KeyNumber {
  std::string label;
  Cell value;  // with the unit
  std::string note;
};

struct Panel {
  enum class Starts { open, folded };
  std::string title;
  std::string note;     // how to read it, and what is omitted
  std::string by_hand;  // how to interact with it, if scripts run
  Html body;
  Starts starts = Starts::open;  // a folded panel is printed only if it was opened
};

struct Page {
  std::string title;
  std::vector<KeyNumber> numbers;  // three or four
  std::vector<KeyNumber> more;     // in small print
  std::vector<std::string> assumed;
  std::vector<Panel> panels;
  std::string command;
  std::string version;
};
[[nodiscard]] std::string to_html(const Page& page);

// The page as a fragment for a host page, such as a notebook: scoped style, no script, a smaller
// title, and no folded panels. In Jupyter and VS Code it follows the theme of the host, otherwise
// the preference of the browser.
[[nodiscard]] std::string to_fragment(const Page& page);

// Parts side by side if they fit, otherwise one below the other.
[[nodiscard]] Html side_by_side(const std::vector<Html>& parts);

}  // namespace shiplap::report
