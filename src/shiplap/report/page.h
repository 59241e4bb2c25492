// One report: a file that opens anywhere, without a network, light or dark, on a telephone and on
// paper.
//
// The title is the finding. Under it stand the few numbers that matter and what was assumed, then
// the panels with pictures and tables, last the command that made it. The same page gives the same
// bytes.
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
  std::string note;     // how to read it, and what was left out
  std::string by_hand;  // what the reader can do with it, where there is a script
  Html body;
  Starts starts = Starts::open;  // a folded one is printed only if the reader opened it
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

// The same as part of somebody else's page, such as a notebook: its style reaches nothing outside
// of it, nothing moves, and the title is a smaller one. What starts folded is left out. It is light
// or dark as that page is, if that is one of Jupyter or VS Code; else as the reader likes.
[[nodiscard]] std::string to_fragment(const Page& page);

// Parts next to each other where there is room, otherwise one below the other.
[[nodiscard]] Html side_by_side(const std::vector<Html>& parts);

}  // namespace shiplap::report
