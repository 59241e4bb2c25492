// Reads arbitrary bytes as a plan in its JSON form. A refusal is fine; whatever is accepted must
// survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "check_plan.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace {

std::optional<shiplap::plan::Plan> read(std::string_view text) {
  try {
    return shiplap::plan::parse_plan_json(text, "fuzz");
  } catch (const shiplap::InputError&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto plan = read(text)) shiplap::plan::check_plan(*plan);
  return 0;
}
