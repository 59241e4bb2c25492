// A trace in Python, with the texts for its report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shiplap/trace/trace.h"

namespace shiplap::python {

struct NamedTrace {
  trace::Trace trace;
  std::string name;                  // of the plan or strategy: "1f1b"
  std::vector<std::string> assumed;  // whole sentences
};
using SharedTrace = std::shared_ptr<const NamedTrace>;

// An HTML fragment for notebooks.
[[nodiscard]] std::string picture(const NamedTrace& trace);
// A standalone HTML file.
[[nodiscard]] std::string page(const NamedTrace& trace);

}  // namespace shiplap::python
