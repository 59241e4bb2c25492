#include "shiplap/trace/align_clocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::trace {
namespace {

Precedence precedence(std::size_t earlier, double from, std::size_t later, double to) {
  return {.earlier = {.clock = earlier, .time = {from}}, .later = {.clock = later, .time = {to}}};
}

ClockAlignment aligned(std::size_t clocks, const std::vector<Precedence>& known) {
  ClockBounds bounds(clocks);
  for (const Precedence& one : known) bounds.add(one);
  return bounds.align();
}

bool holds(const Precedence& known, const ClockAlignment& alignment) {
  const auto time = [&](const Moment& moment) {
    return (moment.time + alignment.clocks[moment.clock].offset).value;
  };
  return time(known.earlier) <= time(known.later) + 1e-9;
}

TEST(AlignClocks, OfOneClockNothingIsToBeDone) {
  const ClockAlignment alignment = ClockBounds(1).align();
  ASSERT_EQ(alignment.clocks.size(), 1U);
  EXPECT_EQ(alignment.clocks[0].offset, Seconds{0});
  EXPECT_EQ(alignment.clocks[0].uncertainty, Seconds{0});
}

// Offsets from -102 to -96 s are possible.
TEST(AlignClocks, TakesTheMiddleOfARoundTrip) {
  const ClockAlignment alignment =
      aligned(2, {precedence(0, 10, 1, 112), precedence(1, 115, 0, 19)});
  EXPECT_DOUBLE_EQ(alignment.clocks[1].offset.value, -99);
  EXPECT_DOUBLE_EQ(alignment.clocks[1].uncertainty.value, 3);
  EXPECT_EQ(alignment.violation, Seconds{0});
}

TEST(AlignClocks, ClocksMayBeConnectedThroughOthers) {
  const ClockAlignment alignment = aligned(3, {precedence(0, 0, 1, 51), precedence(1, 51, 0, 2),
                                               precedence(1, 60, 2, 31), precedence(2, 31, 1, 62)});
  EXPECT_DOUBLE_EQ(alignment.clocks[1].offset.value, -50);
  EXPECT_DOUBLE_EQ(alignment.clocks[2].offset.value, -20);
  EXPECT_DOUBLE_EQ(alignment.clocks[1].uncertainty.value, 1);
  EXPECT_DOUBLE_EQ(alignment.clocks[2].uncertainty.value, 2);
}

TEST(AlignClocks, ContradictionsAreViolatedAsLittleAsPossible) {
  // A message that takes -1 s in whatever alignment.
  const std::vector<Precedence> known{precedence(0, 0, 1, 1), precedence(1, 4, 0, 2)};
  const ClockAlignment alignment = aligned(2, known);
  EXPECT_GE(alignment.violation.value, 0.5);
  EXPECT_LT(alignment.violation.value, 1);  // it is doubled until it is enough
  EXPECT_FALSE(holds(known[0], alignment) && holds(known[1], alignment));
  EXPECT_GT(aligned(1, {precedence(0, 1, 0, 0)}).violation.value, 0.5);
}

// Whole numbers, for which all offsets can be tried: the witness enumerates them.
TEST(AlignClocks, TheIntervalsAreThoseOfAllSolutions) {
  constexpr int kMax = 6;
  Random random(1);
  const auto number = [&](int low, int high) {
    return static_cast<int>(random.between(low, high + 1));
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<Precedence> known;
    const std::vector<int> truth{0, number(-3, 3), number(-3, 3), number(-3, 3)};
    // Connected within the offsets that are tried.
    for (std::size_t k = 1; k < truth.size(); ++k) {
      known.push_back(precedence(0, 0, k, kMax));
      known.push_back(precedence(k, 0, 0, kMax));
    }
    for (int more = number(0, 8); more > 0; --more) {
      const auto a = static_cast<std::size_t>(number(0, 3));
      const auto b = static_cast<std::size_t>(number(0, 3));
      known.push_back(precedence(a, -truth[a], b, number(0, 3) - truth[b]));
    }
    std::vector<int> low(4, kMax);
    std::vector<int> high(4, -kMax);
    std::vector<int> x(4, 0);
    for (x[1] = -kMax; x[1] <= kMax; ++x[1]) {
      for (x[2] = -kMax; x[2] <= kMax; ++x[2]) {
        for (x[3] = -kMax; x[3] <= kMax; ++x[3]) {
          const bool solves = std::ranges::all_of(known, [&](const Precedence& one) {
            return one.earlier.time.value + x[one.earlier.clock] <=
                   one.later.time.value + x[one.later.clock];
          });
          for (std::size_t k = 0; k < 4 && solves; ++k) {
            low[k] = std::min(low[k], x[k]);
            high[k] = std::max(high[k], x[k]);
          }
        }
      }
    }
    const ClockAlignment alignment = aligned(4, known);
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_DOUBLE_EQ(alignment.clocks[k].offset.value, (low[k] + high[k]) / 2.0) << round;
      EXPECT_DOUBLE_EQ(alignment.clocks[k].uncertainty.value, (high[k] - low[k]) / 2.0) << round;
    }
    for (const Precedence& one : known) EXPECT_TRUE(holds(one, alignment)) << round;
  }
}

// Messages of ranks whose clocks are off by seconds: the truth is in every interval, no message
// arrives before it was sent, and intervals shrink with every message.
TEST(AlignClocks, TheTruthIsInEveryIntervalAndMoreMessagesNarrowIt) {
  Random random(7);
  const auto uniform = [&](double low, double high) { return low + (high - low) * random.unit(); };
  for (int round = 0; round < 100; ++round) {
    const auto clocks = static_cast<std::size_t>(random.between(2, 8));
    std::vector<double> truth{0};  // to be added
    while (truth.size() < clocks) truth.push_back(uniform(-5, 5));
    const auto any = [&] { return static_cast<std::size_t>(random.between(0, std::ssize(truth))); };
    std::vector<Precedence> known;
    const auto send = [&](std::size_t from, std::size_t to) {
      const double at = uniform(0, 1);
      const double takes = 20e-6 / uniform(0.02, 1);  // 20 us to 1 ms
      known.push_back(precedence(from, at - truth[from], to, at + takes - truth[to]));
    };
    for (std::size_t k = 1; k < clocks; ++k) {
      send(0, k);
      send(k, 0);
    }
    ClockAlignment before = aligned(clocks, known);
    for (int step = 0; step < 20; ++step) {
      for (int message = 0; message < 5; ++message) send(any(), any());
      const ClockAlignment now = aligned(clocks, known);
      EXPECT_EQ(now.violation, Seconds{0});
      for (std::size_t k = 0; k < clocks; ++k) {
        const double error = std::abs(now.clocks[k].offset.value - truth[k]);
        EXPECT_LE(error, now.clocks[k].uncertainty.value + 1e-12) << round;
        EXPECT_LE(now.clocks[k].uncertainty.value, before.clocks[k].uncertainty.value + 1e-12);
      }
      for (const Precedence& one : known) EXPECT_TRUE(holds(one, now)) << round;
      before = now;
    }
    EXPECT_LT(before.clocks[1].uncertainty.value, 100e-6);
  }
}

}  // namespace
}  // namespace shiplap::trace
