#include "shiplap/trace/text.h"

#include <span>

namespace shiplap::trace {

std::string label(const Event& event) {
  std::string text(name(event.kind));
  if (event.layer >= 0) text += " L" + std::to_string(event.layer);
  if (!event.samples.empty()) text += " s" + short_text(event.samples);
  if (event.peer >= 0) {
    text += event.kind == EventKind::recv ? " from " : " to ";
    text += std::to_string(event.peer);
  }
  return text;
}

std::string short_text(const IndexSet& samples) {
  const std::span<const IndexSet::Run> runs = samples.runs();
  const bool is_pair = runs.size() == 1 && runs[0].count == 2 && runs[0].stride == 1;
  if (!is_pair) return to_string(samples);
  return std::to_string(runs[0].begin) + "-" + std::to_string(runs[0].last());
}

std::string_view category(EventKind kind) {
  if (is_communication(kind)) return "communication";
  if (kind == EventKind::load_weights) return "load";
  if (kind == EventKind::update) return "update";
  return "compute";
}

}  // namespace shiplap::trace
