#include "shiplap/hardware/fit_system.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/hardware/system.h"

namespace shiplap::hardware {
namespace {

// What takes a + b * amount, with errors of +-`noise`.
std::vector<TimedAmount> samples_of(double a, double b, double noise = 0) {
  std::vector<TimedAmount> samples;
  double sign = 1;
  for (const double amount : {1e5, 3e5, 1e6, 4e6, 2e7}) {
    samples.push_back({.amount = amount, .time = {(a + b * amount) * (1 + sign * noise)}});
    sign = -sign;
  }
  return samples;
}

SystemSamples machine(double noise = 0) {
  return {.source = "a test",
          .matrix = samples_of(2e-5, 1 / 50e9, noise),
          .vector = samples_of(1e-6, 1 / 2e9, noise),
          .mem1 = samples_of(3e-7, 1 / 8e9, noise),
          .mem2 = samples_of(0, 1 / 4e9, noise),
          .memory = {std::int64_t{3} << 30},
          .launch = {2e-6},
          .ranks_per_node = 2,
          .networks = {{.kind = "memory",
                        .size = 2,
                        .group = 2,
                        .p2p = samples_of(4e-6, 1 / 5e9, noise),
                        .all_reduce = samples_of(4e-6, 2.2 * 0.5 / 5e9, noise),
                        .all_gather = samples_of(4e-6, 1.1 * 0.5 / 5e9, noise),
                        .reduce_scatter = samples_of(4e-6, 1.3 * 0.5 / 5e9, noise)},
                       {.kind = "a slow link",
                        .size = 6,
                        .group = 6,
                        .p2p = samples_of(1e-4, 1 / 24e6, noise),
                        .all_reduce = samples_of(1e-4, 2 * (1 - 1 / 6.0) / 24e6, noise),
                        .all_gather = samples_of(1e-4, (1 - 1 / 6.0) / 24e6, noise),
                        .reduce_scatter = samples_of(1e-4, (1 - 1 / 6.0) / 24e6, noise)}}};
}

System read(const SystemSamples& samples) {
  return parse_system(to_text(fit_system(samples)), "here.json");
}

void expect_near(double found, double right, double error) {
  EXPECT_NEAR(found, right, error * right);
}

// Time of that many flop in f32.
double flop_time(const Processor& unit, double flop) {
  const Processor::Speed* const speed = unit.usable(DType::f32);
  return speed == nullptr ? -1 : flop / speed->throughput({flop}).flops_per_second;
}

// Time of an amount at the efficiency of a memory.
double time_of(double peak, const Efficiency& efficiency, double amount) {
  return amount / (peak * efficiency.of(amount));
}

TEST(FitSystem, FindsTheConstantsOfTheSamples) {
  const System found = read(machine());
  EXPECT_EQ(found.name, "here");
  for (const double flop : {1e4, 1e6, 1e9}) {
    expect_near(flop_time(found.matrix, flop), 2e-5 + flop / 50e9, 1e-5);
  }
  expect_near(flop_time(found.vector, 1e7), 1e-6 + 1e7 / 2e9, 1e-5);
  expect_near(time_of(found.mem1.peak.bytes_per_second, found.mem1.efficiency, 1e3),
              3e-7 + 1e3 / 8e9, 1e-5);
  expect_near(found.mem2.peak.bytes_per_second, 4e9, 1e-5);
  EXPECT_EQ(found.mem1.capacity.count, std::int64_t{3} << 30);
  EXPECT_EQ(found.launch.value, 2e-6);
  EXPECT_EQ(found.node.value_or(Node{}).devices, 2);
}

TEST(FitSystem, FindsTheFactorsOfCollectives) {
  const System found = read(machine());
  ASSERT_EQ(found.networks.size(), 2U);
  const Network& inner = found.networks[0];
  const Network& outer = found.networks[1];
  EXPECT_EQ(inner.kind, "memory");
  EXPECT_EQ(outer.size, 6);
  expect_near(inner.bandwidth.bytes_per_second, 5e9, 1e-5);
  expect_near(outer.bandwidth.bytes_per_second, 24e6, 1e-5);
  expect_near(outer.latency.value, 1e-4, 1e-5);
  expect_near(inner.all_reduce.scalar, 2.2, 1e-4);
  expect_near(inner.all_gather.scalar, 1.1, 1e-4);
  expect_near(inner.reduce_scatter.scalar, 1.3, 1e-4);
  expect_near(outer.all_reduce.scalar, 2, 1e-4);
  EXPECT_EQ(outer.all_reduce.offset, -1);
  EXPECT_EQ(outer.p2p.scalar, 1);
}

TEST(FitSystem, SaysThatItsFiguresAreFitted) {
  const System found = read(machine());
  int fitted = 0;
  for (const FigureBasis& figure : found.figures) {
    if (figure.path == "networks[1].bandwidth" || figure.path == "matrix.float32.tflops") ++fitted;
    EXPECT_TRUE(figure.basis == Basis::fitted || figure.basis == Basis::assumed) << figure.path;
  }
  EXPECT_EQ(fitted, 2);
}

TEST(FitSystem, IsWithinTheErrorsOfTheSamples) {
  const System found = read(machine(0.03));
  for (const double flop : {1e6, 1e9}) {
    expect_near(flop_time(found.matrix, flop), 2e-5 + flop / 50e9, 0.05);
  }
  expect_near(found.networks[1].bandwidth.bytes_per_second, 24e6, 0.05);
  expect_near(found.networks[1].all_reduce.scalar, 2, 0.05);
}

TEST(FitSystem, HasNoTimesBelowZero) {
  SystemSamples samples = machine();
  samples.matrix = {{.amount = 1e6, .time = {1e-6}}, {.amount = 2e6, .time = {4e-6}}};
  samples.vector = {{.amount = 1e6, .time = {4e-6}}, {.amount = 2e6, .time = {1e-6}}};
  samples.mem2 = {{.amount = 1e6, .time = {1e-7}}};
  const System found = read(samples);
  EXPECT_GE(flop_time(found.matrix, 1), 0);
  EXPECT_GT(flop_time(found.vector, 1e6), 1e-6);
}

}  // namespace
}  // namespace shiplap::hardware
