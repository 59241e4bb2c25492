#include "shiplap/sim/memory.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shiplap::sim {
namespace {

trace::Summary summary_with_peaks(Bytes first, Bytes second) {
  trace::Summary summary;
  summary.ranks = {{.peak = first}, {.peak = second}};
  summary.peak_rank = second > first ? 1 : 0;
  summary.all.peak = std::max(first, second);
  return summary;
}

hardware::System with_memory(Bytes capacity) {
  hardware::System system = hardware::zero_cost_system();
  system.name = "small";
  system.mem1.capacity = capacity;
  return system;
}

TEST(CheckMemory, NamesTheRankAndBothSizes) {
  const auto found = check_memory(summary_with_peaks({1 << 20}, {4 << 20}), with_memory({2 << 20}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->code, "D635");
  EXPECT_EQ(found->severity, Severity::error);
  EXPECT_EQ(found->where.rank, 1);
  EXPECT_EQ(found->what, "out of memory: peak 4.00 MiB on rank 1 exceeds the 2.00 MiB of small");
  EXPECT_EQ(found->why, "the peak of 1 of 2 ranks exceeds the device memory");
}

TEST(CheckMemory, WhatFitsExactlyFits) {
  EXPECT_FALSE(check_memory(summary_with_peaks({0}, {2 << 20}), with_memory({2 << 20})));
}

TEST(CheckMemory, SaysNothingWithoutACapacityOrAPeak) {
  EXPECT_FALSE(check_memory(summary_with_peaks({1}, {1}), with_memory({0})));
  EXPECT_FALSE(check_memory(summary_with_peaks({0}, {0}), with_memory({1})));
  EXPECT_FALSE(check_memory({}, with_memory({1})));
}

}  // namespace
}  // namespace shiplap::sim
