#include "shiplap/run/calibrate.h"

#include <gtest/gtest.h>

#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/run/fit_internal.h"

namespace shiplap::run {
namespace {

using overlap::Calibration;

std::vector<Calibration> calibrated_on(int ranks) {
  std::vector<Calibration> all(ranks);
  comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
    all[world.rank()] = calibrate(world, {.seconds = 0.2, .machine = "threads"});
  });
  return all;
}

TEST(Calibrate, GivesAllRanksTheSameSaneNumbers) {
  const std::vector<Calibration> all = calibrated_on(2);
  EXPECT_EQ(all[0], all[1]);
  const Calibration& here = all[0];
  EXPECT_EQ(here.machine, "threads");
  EXPECT_EQ(here.ranks, 2);
  EXPECT_GT(here.latency.value + here.message.value, 0);
  EXPECT_LT(here.latency.value, 1);
  EXPECT_GT(here.seconds_per_byte, 0);
  EXPECT_LT(here.seconds_per_byte, 1e-6);
  EXPECT_GE(here.processor_seconds_per_byte, 0);
  EXPECT_LT(here.processor_seconds_per_byte, 1e-5);
  ASSERT_EQ(here.gemms.size(), 2U);
  for (const Calibration::GemmCost& product : here.gemms) {
    EXPECT_GE(product.call.value, 0);
    EXPECT_GT(product.call.value + product.seconds_per_flop + product.seconds_per_weight_byte, 0);
    EXPECT_LT(product.seconds_per_flop, 1e-6);
  }
}

TEST(Calibrate, CanBeWrittenReadAndChosenBy) {
  const Calibration here = calibrated_on(2).front();
  EXPECT_EQ(overlap::calibration_from(parse_json(to_text(to_json(here)), "file"), "file"), here);
  const overlap::Problem problem{.m = 512, .n = 512, .k = 512, .ranks = 2};
  for (const overlap::Type type : {overlap::Type::all_gather, overlap::Type::reduce_scatter}) {
    const overlap::Chosen chosen =
        overlap::choose(type, problem, overlap::machine_of(here, type, problem));
    EXPECT_GT(chosen.time.value, 0);
    EXPECT_LE(chosen.time, chosen.serial);
    EXPECT_FALSE(chosen.why.empty());
  }
}

TEST(Calibrate, OfOneRankKnowsProductsAlone) {
  const Calibration here = calibrated_on(1).front();
  EXPECT_EQ(here.latency.value, 0);
  EXPECT_EQ(here.seconds_per_byte, 0);
  EXPECT_EQ(here.gemms.size(), 2U);
}

TEST(Fit, FindsWhatSumsAreMadeOf) {
  std::vector<FitPoint> points;
  for (const double bytes : {1e4, 1e6, 1e8}) {
    for (const double rows : {16.0, 128.0}) {
      const double flop = rows * bytes;
      points.push_back({.parts = {1, bytes, flop}, .total = 3e-6 + 2e-10 * bytes + 5e-12 * flop});
    }
  }
  const auto [call, byte, one_flop] = fit_costs(points);
  EXPECT_NEAR(call, 3e-6, 1e-12);
  EXPECT_NEAR(byte, 2e-10, 1e-16);
  EXPECT_NEAR(one_flop, 5e-12, 1e-18);
}

TEST(Fit, NeverFindsLessThanNothing) {
  std::vector<FitPoint> points;
  for (const double bytes : {1e4, 1e6, 1e8}) {
    points.push_back({.parts = {1, bytes, 16 * bytes}, .total = 1e-9 * bytes});
    points.push_back({.parts = {1, bytes, 128 * bytes}, .total = 1e-8 * bytes});
  }
  for (const double part : fit_costs(points)) EXPECT_GE(part, 0);
}

}  // namespace
}  // namespace shiplap::run
