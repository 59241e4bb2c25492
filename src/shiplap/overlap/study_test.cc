#include "shiplap/overlap/study.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/overlap/query.h"

namespace shiplap::overlap {
namespace {

constexpr double kClose = 1e-9;

// Only the flop of GEMMs and the bytes of messages take time.
hardware::System simple(double flop_rate, double bandwidth) {
  hardware::System system = hardware::zero_cost_system();
  system.matrix.speeds.fill(hardware::Processor::Speed{.peak = {flop_rate}});
  hardware::Network& network = system.networks.front();
  network.bandwidth = {bandwidth};
  network.all_gather = network.reduce_scatter = {.scalar = 1, .offset = -1};
  network.all_reduce = {.scalar = 2, .offset = -1};
  return system;
}

constexpr Choice kGather{Type::all_gather, Method::ring_exchange};

TEST(Prediction, OfTwoRanksByHand) {
  // Each rank multiplies 4 x 8 by 8 x 3: 192 flop, and receives 2 rows of 16 bytes.
  const Problem problem{.m = 4, .n = 6, .k = 8, .ranks = 2, .chunks = 1};
  const Prediction slow_link = predict(kGather, problem, simple(1, 0.1));
  EXPECT_NEAR(slow_link.times.gemm.value, 192, kClose);
  EXPECT_NEAR(slow_link.times.communication.value, 320, kClose);
  EXPECT_NEAR(slow_link.times.serial.value, 512, kClose);
  EXPECT_NEAR(slow_link.times.overlapped.value, 320 + 96, kClose);  // the last two rows come late
  EXPECT_NEAR(slow_link.times.hidden().value_or(0), 96.0 / 192, kClose);
  EXPECT_NEAR(slow_link.times.relative_to_serial(), 416.0 / 512, kClose);
  EXPECT_NEAR(slow_link.times.efficiency(), 320.0 / 416, kClose);
  const Prediction fast_link = predict(kGather, problem, simple(1, 1));
  EXPECT_NEAR(fast_link.times.overlapped.value, 192, kClose);
  EXPECT_NEAR(fast_link.times.hidden().value_or(0), 1, kClose);
}

// A ring of equal tiles, step by step: message k arrives at k c, and each tile is multiplied when
// it is there and the one before is done. Shares nothing with the replay.
double played_ring(int ranks, int chunks, double g, double c) {
  const int messages = (ranks - 1) * chunks;
  const double tile = g / (ranks * chunks);
  double busy_until = g / ranks;
  for (int k = 1; k <= messages; ++k) {
    busy_until = std::max(busy_until, k * c / messages) + tile;
  }
  return busy_until;
}

// 30 rows of each rank as 15, 10 and 5: the last 5 come last.
TEST(Prediction, TaperedChunksEndSooner) {
  Problem problem{.m = 60, .n = 8, .k = 16, .ranks = 2, .chunks = 3};
  const Prediction even = predict(kGather, problem, simple(1, 0.1));
  problem.cut = Cut::tapered;
  const Prediction tapered = predict(kGather, problem, simple(1, 0.1));
  const double g = even.times.gemm.value;
  const double c = even.times.communication.value;
  ASSERT_GT(c, g);
  EXPECT_NEAR(even.times.overlapped.value, c + g / 6, kClose * c);
  EXPECT_NEAR(tapered.times.overlapped.value, c + g / 12, kClose * c);
  EXPECT_NEAR(tapered.bound.value, c + g / 12, kClose * c);
}

TEST(Prediction, OfARingOfEqualTilesIsItsFormula) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int chunks : {1, 2, 5}) {
      for (const double bandwidth : {0.01, 0.1, 0.3, 1.0, 10.0}) {
        const Problem problem{.m = std::int64_t{ranks} * chunks * 3,
                              .n = std::int64_t{ranks} * 4,
                              .k = 16,
                              .ranks = ranks,
                              .chunks = chunks};
        const Prediction made = predict(kGather, problem, simple(1, bandwidth));
        const double g = made.times.gemm.value;
        const double c = made.times.communication.value;
        EXPECT_NEAR(g, 2.0 * 16 * 4 * static_cast<double>(problem.m), kClose);
        EXPECT_NEAR(c, 2.0 * 16 * 3 * chunks * (ranks - 1) / bandwidth, kClose * c);
        const double t = played_ring(ranks, chunks, g, c);
        EXPECT_NEAR(made.times.overlapped.value, t, kClose * t) << ranks << " x " << chunks;
        EXPECT_NEAR(made.bound.value, t, kClose * t) << ranks << " x " << chunks;
        EXPECT_NEAR(made.tiles.value, g, kClose * g);
      }
    }
  }
}

TEST(Prediction, IsNeverBelowTheBoundOfTheMethod) {
  for (const SupportedChoice& supported : supported_choices()) {
    if (supported.choice.type == Type::none) continue;
    for (const int ranks : {1, 2, 4}) {
      for (const int chunks : {1, 3}) {
        for (const double bandwidth : {0.02, 0.2, 2.0}) {
          const Problem problem{.m = std::int64_t{ranks} * chunks * 2,
                                .n = 16,
                                .k = 16,
                                .ranks = ranks,
                                .chunks = chunks};
          const Prediction made = predict(supported.choice, problem, simple(1, bandwidth));
          EXPECT_GE(made.times.overlapped.value, made.bound.value * (1 - kClose))
              << to_string(supported.choice) << ", " << ranks << " x " << chunks;
          EXPECT_GE(made.bound.value, made.times.lower_bound().value * (1 - kClose));
        }
      }
    }
  }
}

TEST(Prediction, OfAPipelineReachesItsBound) {
  const Choice pipeline{Type::reduce_scatter, Method::pipeline};
  for (const double bandwidth : {0.02, 0.2, 2.0}) {
    const Problem problem{.m = 24, .n = 16, .k = 16, .ranks = 4, .chunks = 3};
    const Prediction made = predict(pipeline, problem, simple(1, bandwidth));
    EXPECT_NEAR(made.times.overlapped.value, made.bound.value, kClose * made.bound.value);
  }
}

TEST(Prediction, OfOneRankHidesNothing) {
  const Problem problem{.m = 4, .n = 6, .k = 8, .ranks = 1};
  const Prediction made = predict(kGather, problem, simple(1, 1));
  EXPECT_FALSE(made.times.hidden().has_value());
  EXPECT_EQ(made.times.communication.value, 0);
  EXPECT_EQ(made.times.overlapped, made.times.gemm);
}

TEST(Prediction, RefusesWhatWouldTakeTooLong) {
  const Problem problem{.m = 1 << 20, .n = 1024, .k = 8, .ranks = 1024, .chunks = 100};
  EXPECT_THROW(static_cast<void>(predict(kGather, problem, simple(1, 1))), InputError);
}

// Before ranks are started and rounds are measured, for what cannot be predicted afterwards.
TEST(BeginStudy, RefusesAMachineThatNobodyKnows) {
  Query query{.op = "ag",
              .method = "ring_exchange",
              .m = 64,
              .n = 64,
              .k = 64,
              .hardware = "h1000",
              .run = true};
  EXPECT_THROW(static_cast<void>(begin_study(query)), InputError);
  query.hardware = "h200";
  EXPECT_NO_THROW(static_cast<void>(begin_study(query)));
}

TEST(CompareOverlaps, PutsTheFastestFirst) {
  const Problem problem{.m = 64, .n = 16, .k = 16, .ranks = 4};
  const std::vector<Compared> all =
      compare({.type = Type::reduce_scatter}, problem, simple(1, 0.2), {1, 2, 4}).candidates;
  // none once, pipeline and ring_exchange in three ways each
  ASSERT_EQ(all.size(), 7U);
  EXPECT_TRUE(
      std::ranges::is_sorted(all, {}, [](const Compared& each) { return each.times.overlapped; }));
  EXPECT_NE(all.front().choice.method, Method::none);
  for (const Compared& each : all) {
    if (each.choice.method == Method::none) {
      EXPECT_EQ(each.times.relative_to_serial(), 1);
    }
  }
}

TEST(Calibrated, ReproducesWhatWasMeasured) {
  for (const SupportedChoice& supported : supported_choices()) {
    if (supported.choice.type == Type::none) continue;
    const Problem problem{.m = 29, .n = 10, .k = 11, .ranks = 3, .chunks = 2};
    const hardware::System system =
        calibrated_system(supported.choice, problem, {.gemm = {0.5}, .communication = {0.25}});
    const Prediction made = predict(supported.choice, problem, system);
    EXPECT_NEAR(made.times.gemm.value, 0.5, kClose) << to_string(supported.choice);
    EXPECT_NEAR(made.times.communication.value, 0.25, kClose) << to_string(supported.choice);
    EXPECT_GE(made.times.overlapped.value, 0.5 * (1 - kClose)) << to_string(supported.choice);
  }
}

// The bound uses the GEMM alone and the messages alone, without sums.
TEST(Prediction, BoundsPlansWithCodedSumsToo) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const SupportedChoice& supported : supported_choices()) {
    const bool has_sums =
        supported.choice.type == Type::reduce_scatter || supported.choice.type == Type::all_reduce;
    if (!has_sums || supported.choice.method == Method::bulk) continue;
    for (const Scaling scaling : {Scaling::row, Scaling::blocks}) {
      for (const int chunks : {1, 2, 3}) {
        const QuantFormat format{.scaling = scaling};
        const Prediction made = predict(supported.choice,
                                        {.m = 4096,
                                         .n = 8192,
                                         .k = 8192,
                                         .ranks = 4,
                                         .chunks = chunks,
                                         .x = format,
                                         .w = format,
                                         .sums = format},
                                        system);
        EXPECT_GE(made.times.overlapped.value, made.bound.value * (1 - 1e-9))
            << to_string(supported.choice) << " in " << chunks;
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::overlap
