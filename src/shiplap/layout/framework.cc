#include "shiplap/layout/framework.h"

#include <algorithm>
#include <array>

#include "shiplap/base/error.h"
#include "shiplap/layout/reading_internal.h"

namespace shiplap::layout {
namespace {

constexpr std::array kFrameworks = {Framework::megatron, Framework::torchtitan,
                                    Framework::deepspeed, Framework::accelerate};

}  // namespace

std::string_view name(Framework framework) {
  switch (framework) {
    case Framework::megatron:
      return "megatron";
    case Framework::torchtitan:
      return "torchtitan";
    case Framework::deepspeed:
      return "deepspeed";
    case Framework::accelerate:
      return "accelerate";
  }
  throw InternalError("unknown framework");
}

std::optional<Framework> framework_named(std::string_view text) {
  const auto found = std::ranges::find(kFrameworks, text, [](Framework f) { return name(f); });
  if (found == kFrameworks.end()) return {};
  return *found;
}

LayoutFile read_layout(Framework framework, std::string_view text, const workload::Model& model,
                       std::optional<std::int64_t> ranks) {
  switch (framework) {
    case Framework::megatron:
      return read_megatron(text, model, ranks);
    case Framework::torchtitan:
      return read_torchtitan(text, model, ranks);
    case Framework::deepspeed:
      return read_deepspeed(text, model, ranks);
    case Framework::accelerate:
      return read_accelerate(text, model, ranks);
  }
  throw InternalError("unknown framework");
}

std::string write_layout(Framework framework, const Layout& layout, const workload::Model& model) {
  std::vector<Diagnostic> found = check_layout(layout, model);
  std::erase_if(found, [](const Diagnostic& d) { return d.severity != Severity::error; });
  if (!found.empty()) throw InputError(std::move(found));
  switch (framework) {
    case Framework::megatron:
      return write_megatron(layout, model);
    case Framework::torchtitan:
      return write_torchtitan(layout, model);
    case Framework::deepspeed:
      return write_deepspeed(layout, model);
    case Framework::accelerate:
      return write_accelerate(layout, model);
  }
  throw InternalError("unknown framework");
}

}  // namespace shiplap::layout
