// The layout of a training run in the words of a framework, which the first byte chooses: an error
// with a diagnostic, or a layout without errors whose stages have all layers.
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/layout/framework.h"

namespace {

using namespace shiplap;

const workload::Model& fuzzed_model(bool experts) {
  static const workload::Model dense = workload::find_model("llama3-8b").model;
  static const workload::Model moe = workload::find_model("deepseek-v3").model;
  return experts ? moe : dense;
}

// What was read can be written, unless the framework has no words for it, and read again.
void check_round_trip(layout::Framework framework, const layout::Layout& read,
                      const workload::Model& model) {
  std::string text;
  try {
    text = layout::write_layout(framework, read, model);
  } catch (const InputError&) {
    return;
  }
  // The files of these two do not have everything.
  if (framework == layout::Framework::deepspeed || framework == layout::Framework::accelerate) {
    (void)layout::read_layout(framework, text, model);
    return;
  }
  ensure(layout::read_layout(framework, text, model).layout == read, "it is read as it was");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array kFrameworks = {layout::Framework::megatron, layout::Framework::torchtitan,
                                      layout::Framework::deepspeed, layout::Framework::accelerate};
  if (size == 0) return 0;
  const auto framework = kFrameworks[data[0] % kFrameworks.size()];
  const workload::Model& model = fuzzed_model((data[0] & 8U) != 0);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const layout::Layout read = layout::read_layout(framework, text, model, 64).layout;
    std::int64_t layers = 0;
    for (const layout::Stage& stage : layout::stages_of(read, model)) layers += stage.layers;
    ensure(layers == std::ssize(model.layers), "stages have all layers");
    ensure(read.ranks() == 64, "the ranks are those that were given");
    check_round_trip(framework, read, model);
  } catch (const InputError& error) {
    ensure(!error.diagnostics().empty(), "an error has a diagnostic");
  }
  return 0;
}
