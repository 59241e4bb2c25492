#include "shiplap/hardware/system.h"

#include <gtest/gtest.h>

#include <cmath>

#include "shiplap/base/error.h"

namespace shiplap::hardware {
namespace {

TEST(Efficiency, IsThatOfTheFirstStepReached) {
  const Efficiency curve({{.at_least = 100, .share = 0.9},
                          {.at_least = 10, .share = 0.5},
                          {.at_least = 0, .share = 0.1}});
  EXPECT_EQ(curve.of(0), 0.1);
  EXPECT_EQ(curve.of(std::nextafter(10, 0)), 0.1);
  EXPECT_EQ(curve.of(10), 0.5);
  EXPECT_EQ(curve.of(std::nextafter(100, 0)), 0.5);
  EXPECT_EQ(curve.of(100), 0.9);
  EXPECT_EQ(curve.of(1e300), 0.9);
}

TEST(Efficiency, IsWholeUnlessStated) { EXPECT_EQ(Efficiency().of(123), 1); }

TEST(Efficiency, CannotBeBuiltWrong) {
  using Steps = std::vector<Efficiency::Step>;
  EXPECT_THROW(Efficiency(Steps{}), InternalError);
  EXPECT_THROW(Efficiency(Steps{{.at_least = 1, .share = 1}}), InternalError);
  EXPECT_THROW(Efficiency(Steps{{.at_least = 0, .share = 0}}), InternalError);
  EXPECT_THROW(Efficiency(Steps{{.at_least = 0, .share = 1}, {.at_least = 0, .share = 1}}),
               InternalError);
}

TEST(Efficiency, OfACurveMakesTheTimeAFixedPartPlusOneOfTheWork) {
  const Efficiency curve(Efficiency::Curve{.limit = 0.8, .half = 50});
  EXPECT_DOUBLE_EQ(curve.of(50), 0.4);
  for (const double amount : {1e-3, 1.0, 49.0, 1e9}) {
    EXPECT_NEAR(amount / curve.of(amount), (amount + 50) / 0.8, 1e-9 * amount + 1e-9);
  }
  EXPECT_EQ(Efficiency(Efficiency::Curve{.limit = 0.8}).of(0), 0.8);
  EXPECT_THROW(Efficiency(Efficiency::Curve{.limit = 0}), InternalError);
  EXPECT_THROW(Efficiency(Efficiency::Curve{.half = -1}), InternalError);
}

constexpr std::array kTypes{DType::fp8_e4m3, DType::f16, DType::bf16, DType::f32};

TEST(Processor, HasOneSpeedForBothKindsOfFp8AndF32ForWhatIsNotListed) {
  Processor processor;
  processor.speed(DType::fp8_e4m3) = {.peak = {8}};
  processor.speed(DType::f32) = {.peak = {32}};
  EXPECT_EQ(processor.usable(DType::fp8_e5m2)->peak.flops_per_second, 8);
  for (const DType type : {DType::f64, DType::f32, DType::i64, DType::i32, DType::i16, DType::i8,
                           DType::u8, DType::f16, DType::bf16}) {
    EXPECT_EQ(processor.usable(type)->peak.flops_per_second, 32) << name(type);
  }
  EXPECT_EQ(Processor::speed_name(DType::i8), "float32");
  for (const DType type : kTypes) {
    EXPECT_EQ(Processor::speed_name(type), long_name(type));
  }
}

// For every set of supported types: the type that computes each type.
TEST(Processor, ComputesInTheTypeItselfOrInAWiderOne) {
  for (unsigned known = 0; known < 16; ++known) {
    Processor processor;
    for (std::size_t k = 0; k < kTypes.size(); ++k) {
      if ((known >> k & 1U) == 0) continue;
      processor.speed(kTypes[k]) = {.peak = {static_cast<double>(kTypes[k])}};
    }
    for (const DType wanted : kTypes) {
      const Processor::Speed* const found = processor.usable(wanted);
      bool any = false;
      for (const DType other : kTypes) {
        any |= processor.speed(other).has_value() && bytes_of(other) >= bytes_of(wanted);
      }
      ASSERT_EQ(found != nullptr, any) << known;
      if (found == nullptr) continue;
      const auto used = static_cast<DType>(found->peak.flops_per_second);
      if (processor.speed(wanted).has_value()) {
        EXPECT_EQ(used, wanted) << known;
      }
      for (const DType other : {DType::f16, DType::bf16, DType::f32}) {
        const bool as_good =
            processor.speed(other).has_value() && bytes_of(other) >= bytes_of(wanted);
        if (as_good) {
          EXPECT_LE(bytes_of(used), bytes_of(other)) << known;
        }
      }
    }
  }
}

TEST(MemoryTier, DeliversAsTheCurveSays) {
  const MemoryTier memory{
      .peak = {1000},
      .efficiency = Efficiency({{.at_least = 8, .share = 0.5}, {.at_least = 0, .share = 0.25}})};
  EXPECT_EQ(memory.throughput({7}).bytes_per_second, 250);
  EXPECT_EQ(memory.throughput({8}).bytes_per_second, 500);
}

TEST(FreeSystem, TakesNoTime) {
  const System system = zero_cost_system();
  for (const DType type : {DType::fp8_e4m3, DType::f16, DType::f32}) {
    EXPECT_EQ((Flops{1e20} / system.matrix.usable(type)->throughput({1e20})).value, 0);
    EXPECT_EQ((Flops{1e20} / system.vector.usable(type)->throughput({1e20})).value, 0);
  }
  EXPECT_EQ((Bytes{1} / system.mem2.throughput({1})).value, 0);
  EXPECT_EQ(system.networks.front().latency.value, 0);
}

}  // namespace
}  // namespace shiplap::hardware
