// Parses arbitrary text as a pipeline schedule of torch, and expands the resulting plan.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/strategy/import_schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kMaxRanks = 64;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto plan = shiplap::strategy::plan_of_schedule(text, "fuzz.csv");
    for (std::int32_t rank = 0; rank < plan.mesh.ranks() && rank < kMaxRanks; ++rank) {
      (void)shiplap::plan::expand(plan, shiplap::Rank(rank));
    }
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
