// A trace as Python holds it, with the words that its pictures need.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shiplap/trace/trace.h"

namespace shiplap::python {

struct NamedTrace {
  trace::Trace trace;
  std::string name;                  // of what ran: "1f1b"
  std::vector<std::string> assumed;  // whole sentences
};
using SharedTrace = std::shared_ptr<const NamedTrace>;

// For a notebook.
[[nodiscard]] std::string picture(const NamedTrace& trace);
// One HTML file.
[[nodiscard]] std::string page(const NamedTrace& trace);

}  // namespace shiplap::python
