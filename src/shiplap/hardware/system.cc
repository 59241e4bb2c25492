#include "shiplap/hardware/system.h"

#include <limits>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::hardware {

Efficiency::Efficiency(std::vector<Step> steps) : steps_(std::move(steps)) {
  ensure(!steps_.empty() && steps_.back().at_least == 0, "an efficiency curve ends at 0");
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    ensure(steps_[k].share > 0, "an efficiency is above 0");
    ensure(k == 0 || steps_[k].at_least < steps_[k - 1].at_least, "an efficiency curve falls");
  }
}

double Efficiency::of(double amount) const {
  for (const Step& step : steps_) {
    if (amount >= step.at_least) return step.share;
  }
  ensure(steps_.empty(), "there is no less than no work");
  return 1;
}

FlopRate Processor::Speed::throughput(Flops flops) const {
  return {peak.flops_per_second * efficiency.of(flops.count)};
}

const Processor::Speed* Processor::usable(Datatype type) const {
  static constexpr std::array<std::array<Datatype, 4>, 4> kTried{{
      {Datatype::float8, Datatype::float16, Datatype::bfloat16, Datatype::float32},
      {Datatype::float16, Datatype::bfloat16, Datatype::float32, Datatype::float32},
      {Datatype::bfloat16, Datatype::float16, Datatype::float32, Datatype::float32},
      {Datatype::float32, Datatype::float32, Datatype::float32, Datatype::float32},
  }};
  for (const Datatype candidate : kTried[static_cast<std::size_t>(type)]) {
    const std::optional<Speed>& found = speed(candidate);
    if (found.has_value()) return &*found;
  }
  return nullptr;
}

Bandwidth MemoryTier::throughput(Bytes bytes) const {
  return {peak.bytes_per_second * efficiency.of(static_cast<double>(bytes.count))};
}

System free_system() {
  constexpr double kEndless = std::numeric_limits<double>::infinity();
  const MemoryTier memory{.capacity = kMostCapacity, .peak = {kEndless}};
  System system{.name = "free",
                .mem1 = memory,
                .mem2 = memory,
                .networks = {{.bandwidth = {kEndless}, .size = std::int64_t{1} << 20}}};
  for (std::optional<Processor::Speed>& speed : system.matrix.speeds) {
    speed = Processor::Speed{.peak = {kEndless}};
  }
  system.vector = system.matrix;
  return system;
}

}  // namespace shiplap::hardware
