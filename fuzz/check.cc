// Checks any plan that can be parsed, in bounded time, with and without symmetry: same verdict.
#include "shiplap/check/check.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

namespace {

// Excludes plans that are slow only because of their size.
bool is_small(const shiplap::plan::Plan& plan) {
  if (plan.mesh.ranks() > 32) return false;
  for (const shiplap::plan::Tensor& tensor : plan.tensors) {
    for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
      if (tensor.dimension(shiplap::plan::DimensionId(k)).size > 4096) return false;
    }
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const shiplap::plan::Plan plan = shiplap::plan::parse_plan(text, "fuzz.plan");
    if (!is_small(plan)) return 0;
    const shiplap::check::Options options{
        .operations = 2000, .one_rank = {.operations = 500, .iterations = 5000, .entries = 5000}};
    shiplap::check::Options full = options;
    full.symmetry = false;
    const bool sound = shiplap::check::check(plan, options).sound();
    if (sound != shiplap::check::check(plan, full).sound()) __builtin_trap();
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
