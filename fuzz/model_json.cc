// A config.json of a model: an error with a diagnostic, or a model whose counts are consistent.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/workload/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shiplap;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const workload::Model model = workload::parse_model(text, "fuzz").model;
    ensure(model.parameters() >= model.active_parameters(), "a token meets some of the parameters");
    ensure(model.forward_flop({.sequences = 2, .length = 4096}) >= 0, "work is positive");
  } catch (const InputError& error) {
    ensure(!error.diagnostics().empty(), "an error has a diagnostic");
  }
  return 0;
}
