// Parses arbitrary text as a system. Times on an accepted system must be valid.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"

namespace {

void use(const shiplap::hardware::System& system) {
  using shiplap::Bytes;
  using shiplap::ensure;
  using shiplap::Rank;
  const shiplap::Seconds message =
      shiplap::cost::message_time(system, Bytes{1 << 20}, Rank(0), Rank(9));
  ensure(message.value >= 0, "a message takes time");
  for (const char* const kernel_class : {"gemm", "update", "load"}) {
    const shiplap::cost::ComputeWork work{
        .kernel_class = kernel_class, .flop = 1e10, .bytes = 1e7, .type = shiplap::DType::fp8_e4m3};
    // At least one width has a speed, and float8 can be computed in every width.
    ensure(shiplap::cost::compute_time(system, work).value >= 0, "a computation takes time");
  }
  for (std::int64_t ranks = 2; ranks < 20; ++ranks) {
    const shiplap::Seconds time =
        shiplap::cost::collective_time(system, shiplap::CollectiveKind::all_reduce, Bytes{1 << 20},
                                       {.ranks = ranks, .lowest = 0, .highest = ranks - 1});
    ensure(time.value >= 0, "a collective takes time");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    use(shiplap::hardware::parse_system(text, "fuzz.json"));
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
