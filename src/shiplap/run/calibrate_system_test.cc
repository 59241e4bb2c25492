#include "shiplap/run/calibrate_system.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/system.h"

namespace shiplap::run {
namespace {

using hardware::SystemSamples;

std::vector<SystemSamples> measured_on(int ranks) {
  std::vector<SystemSamples> all(static_cast<std::size_t>(ranks));
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    all[static_cast<std::size_t>(world.rank())] =
        measure_system(world, {.hidden = 32, .block = 8, .transport = "threads"});
  });
  return all;
}

std::string file_of(const SystemSamples& samples) { return to_text(fit_system(samples)); }

TEST(CalibrateSystem, GivesAllRanksTheSameSamples) {
  const std::vector<SystemSamples> all = measured_on(2);
  EXPECT_EQ(file_of(all[0]), file_of(all[1]));
}

TEST(CalibrateSystem, MeasuresEveryPartOfAMachine) {
  const SystemSamples samples = measured_on(3).front();
  EXPECT_EQ(samples.matrix.size(), 6U);  // forward and backward of 1, 2 and 4 samples
  EXPECT_EQ(samples.matrix[0].amount, 2.0 * 32 * 32 * 8);
  EXPECT_EQ(samples.matrix[5].amount, 4.0 * 32 * 32 * 8 * 4);
  EXPECT_EQ(samples.vector[0].amount, 11.0 * 32 * 32);
  EXPECT_EQ(samples.mem1.size(), 6U);
  EXPECT_EQ(samples.mem1[1].amount, 2.0 * 8 * 32 * 4);
  EXPECT_GE(samples.launch.value, 0);
  EXPECT_GT(samples.memory.count, 0);
  ASSERT_EQ(samples.networks.size(), 1U);  // threads are on one host
  EXPECT_EQ(samples.networks[0].size, 3);
  EXPECT_EQ(samples.networks[0].group, 3);
  EXPECT_EQ(samples.networks[0].kind, "threads on a host");
  EXPECT_EQ(samples.ranks_per_node, 3);
}

TEST(CalibrateSystem, GivesAHardwareFile) {
  const hardware::System here =
      hardware::parse_system(file_of(measured_on(2).front()), "here.json");
  EXPECT_EQ(here.name, "here");
  const hardware::Processor::Speed* const speed = here.matrix.usable(DType::f32);
  ASSERT_NE(speed, nullptr);
  const double rate = speed->throughput({1e9}).flops_per_second;
  EXPECT_GT(rate, 1e6);
  EXPECT_LT(rate, 1e14);
  EXPECT_GT(here.networks[0].bandwidth.bytes_per_second, 1e6);
  EXPECT_LT(here.networks[0].latency.value, 1);
}

TEST(RanksPerHost, IsTheSizeOfEqualBlocks) {
  EXPECT_EQ(ranks_per_host({"a", "b"}), 1);
  EXPECT_EQ(ranks_per_host({"a", "a"}), 2);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "b", "c", "c"}), 2);
}

TEST(RanksPerHost, IsZeroForAnyOtherPlacement) {
  EXPECT_EQ(ranks_per_host({"a", "b", "a", "b"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "b", "b", "b"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "b", "a", "a"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "c"}), 0);
}

}  // namespace
}  // namespace shiplap::run
