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

Efficiency::Efficiency(Curve curve) : curve_(curve) {
  ensure(curve.limit > 0 && curve.half >= 0, "an efficiency is above 0");
}

double Efficiency::of(double amount) const {
  if (steps_.empty()) {
    return curve_.half == 0 ? curve_.limit : curve_.limit * amount / (amount + curve_.half);
  }
  for (const Step& step : steps_) {
    if (amount >= step.at_least) return step.share;
  }
  throw InternalError("there is no less than no work");
}

FlopRate Processor::Speed::throughput(Flops flops) const {
  return {peak.flops_per_second * efficiency.of(flops.count)};
}

std::string_view to_string(Basis basis) {
  static constexpr std::array<std::string_view, 4> kNames{"", "published", "fitted", "assumed"};
  return kNames[static_cast<std::size_t>(basis)];
}

namespace {

std::size_t slot_of(DType type) {
  if (is_fp8(type)) return 0;
  if (type == DType::f16) return 1;
  return type == DType::bf16 ? 2 : 3;
}

}  // namespace

std::string_view Processor::speed_name(DType type) {
  static constexpr std::array<std::string_view, 4> kNames{"float8", "float16", "bfloat16",
                                                          "float32"};
  return kNames[slot_of(type)];
}

const std::optional<Processor::Speed>& Processor::speed(DType type) const {
  return speeds[slot_of(type)];
}

std::optional<Processor::Speed>& Processor::speed(DType type) { return speeds[slot_of(type)]; }

const Processor::Speed* Processor::usable(DType type) const {
  static constexpr std::array<std::array<std::size_t, 4>, 4> kFallbacks{
      {{0, 1, 2, 3}, {1, 2, 3, 3}, {2, 1, 3, 3}, {3, 3, 3, 3}}};
  for (const std::size_t slot : kFallbacks[slot_of(type)]) {
    const std::optional<Speed>& found = speeds[slot];
    if (found.has_value()) return &*found;
  }
  return nullptr;
}

Bandwidth MemoryTier::throughput(Bytes bytes) const {
  return {peak.bytes_per_second * efficiency.of(static_cast<double>(bytes.count))};
}

System zero_cost_system() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const MemoryTier memory{.capacity = kMaxCapacity, .peak = {kInfinity}};
  System system{.name = "free",
                .mem1 = memory,
                .mem2 = memory,
                .networks = {{.bandwidth = {kInfinity}, .size = std::int64_t{1} << 20}}};
  for (std::optional<Processor::Speed>& speed : system.matrix.speeds) {
    speed = Processor::Speed{.peak = {kInfinity}};
  }
  system.vector = system.matrix;
  return system;
}

}  // namespace shiplap::hardware
