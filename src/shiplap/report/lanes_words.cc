// What lanes say of an event.
#include <fmt/format.h>

#include "shiplap/base/units.h"
#include "shiplap/report/lanes_internal.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/text.h"

namespace shiplap::report {

using trace::Event;
using trace::Kind;

std::string told(const Event& event) {
  std::string text(trace::name(event.kind));
  if (event.layer >= 0) text += fmt::format(", layer {}", event.layer);
  if (!event.samples.empty()) {
    text += fmt::format(", sample{} {}", event.samples.size() == 1 ? "" : "s",
                        trace::short_text(event.samples));
  }
  return text;
}

std::string facts(const LaneBox& box, const BoxFacts& about) {
  const Event& event = *box.event;
  const std::string when = fmt::format(
      "starts at {}, takes {}", to_string(event.time - about.origin), to_string(event.duration));
  if (box.events > 1) {
    return fmt::format("rank {}: {} events, drawn together\nfrom {} to {}\nthe first: {}",
                       about.rank, with_separators(box.events),
                       to_string(box.span.begin - about.origin),
                       to_string(box.span.end - about.origin), trace::label(event));
  }
  std::string text = fmt::format("rank {}: {}\n{}", about.rank, about.what, when);
  if (trace::is_communication(event.kind)) {
    text += "\n" + to_string(event.bytes);
    if (event.peer >= 0) {
      text += fmt::format(" {} rank {}", event.kind == Kind::recv ? "from" : "to", event.peer);
    }
  }
  if (event.memory.count > 0) text += "\nmemory " + to_string(event.memory);
  if (event.operation >= 0) text += fmt::format("\noperation {}", event.operation);
  return text;
}

std::string_view letters(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "AR";
    case Kind::all_gather:
      return "AG";
    case Kind::reduce_scatter:
      return "RS";
    case Kind::all_to_all:
      return "AA";
    case Kind::send:
      return "S";
    case Kind::recv:
      return "R";
    default:
      return "";
  }
}

}  // namespace shiplap::report
