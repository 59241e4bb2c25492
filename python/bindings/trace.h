// A trace in Python, with the texts for its report.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bind.h"
#include "shiplap/plan/mesh.h"
#include "shiplap/trace/event.h"
#include "shiplap/trace/trace.h"

namespace shiplap::python {

struct NamedTrace {
  trace::Trace trace;
  std::string name;                  // of the plan or strategy: "1f1b"
  std::vector<std::string> assumed;  // whole sentences
  plan::Mesh mesh{};                 // no axes: not known
  // Of a folded trace: replays every rank. Not copied by pickle.
  std::function<trace::Trace()> replay_all{};
};
using SharedTrace = std::shared_ptr<const NamedTrace>;

// Throws InputError D003 for an unknown name, with similar ones.
[[nodiscard]] trace::EventKind parse_event_kind(const std::string& name);

// As a list of shiplap.Event.
[[nodiscard]] nb::list events_to_python(const std::vector<trace::Event>& events);

// An HTML fragment for notebooks.
[[nodiscard]] std::string picture(const NamedTrace& trace);
// A standalone HTML file.
[[nodiscard]] std::string page(const NamedTrace& trace);

}  // namespace shiplap::python
