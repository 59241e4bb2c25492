#include "shiplap/sim/flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/base/random.h"

namespace shiplap::sim {
namespace {

using Uses = std::vector<LinkUse>;

TEST(Flows, AloneTakesItsLatencyAndItsBytesAtItsRate) {
  Flows flows({100, 100});
  const std::int32_t flow =
      flows.start(5, Uses{{.link = 0}, {.link = 1}}, {.latency = 2, .bytes = 40, .rate = 20});
  EXPECT_EQ(flows.rate(flow, 6), 0);
  EXPECT_EQ(flows.rate(flow, 7), 20);
  EXPECT_EQ(flows.advance().time, 9);
  EXPECT_TRUE(std::isinf(flows.next_event()));
}

TEST(Flows, WithoutBytesTakesItsLatency) {
  Flows flows({100});
  flows.start(0, Uses{}, {.latency = 3});
  EXPECT_EQ(flows.end_next().time, 3);
  flows.start(3, Uses{}, {});
  EXPECT_EQ(flows.end_next().time, 3);
}

TEST(Flows, ShareALinkEvenlyAndSpeedUpWhenOneEnds) {
  Flows flows({10});
  const std::int32_t small = flows.start(0, Uses{{.link = 0}}, {.bytes = 10, .rate = 10});
  flows.start(0, Uses{{.link = 0}}, {.bytes = 30, .rate = 10});
  const Flows::End first = flows.end_next();
  EXPECT_EQ(first.flow, small);
  EXPECT_DOUBLE_EQ(first.time, 2);             // 10 bytes at 5
  EXPECT_DOUBLE_EQ(flows.end_next().time, 4);  // 20 bytes are left, at 10
}

// The example of Bertsekas and Gallager: the flow that crosses both links gets half of the narrow
// one, and the other user of the wide link takes the rest.
TEST(Flows, AreMaxMinFair) {
  Flows flows({10, 40});
  const std::int32_t both =
      flows.start(0, Uses{{.link = 0}, {.link = 1}}, {.bytes = 1, .rate = 99});
  const std::int32_t narrow = flows.start(0, Uses{{.link = 0}}, {.bytes = 1, .rate = 99});
  const std::int32_t wide = flows.start(0, Uses{{.link = 1}}, {.bytes = 1, .rate = 99});
  EXPECT_DOUBLE_EQ(flows.rate(both, 0), 5);
  EXPECT_DOUBLE_EQ(flows.rate(narrow, 0), 5);
  EXPECT_DOUBLE_EQ(flows.rate(wide, 0), 35);
}

TEST(Flows, TakeNoMoreThanTheirOwnRate) {
  Flows flows({10});
  const std::int32_t slow = flows.start(0, Uses{{.link = 0}}, {.bytes = 1, .rate = 2});
  const std::int32_t fast = flows.start(0, Uses{{.link = 0}}, {.bytes = 1, .rate = 10});
  EXPECT_DOUBLE_EQ(flows.rate(slow, 0), 2);
  EXPECT_DOUBLE_EQ(flows.rate(fast, 0), 8);
}

TEST(Flows, CountWithTheirShareOfTheBytes) {
  Flows flows({12});
  const std::int32_t twice = flows.start(0, Uses{{.link = 0, .share = 2}}, {.bytes = 1, .rate = 6});
  const std::int32_t once = flows.start(0, Uses{{.link = 0}}, {.bytes = 1, .rate = 12});
  EXPECT_DOUBLE_EQ(flows.rate(twice, 0), 4);
  EXPECT_DOUBLE_EQ(flows.rate(once, 0), 4);
}

struct Given {
  Uses uses;
  double rate = 0;
};

// Progressive filling by the definition, on all flows at once.
std::map<std::int32_t, double> fair_rates(const std::map<std::int32_t, Given>& flows,
                                          const std::vector<double>& capacities) {
  std::map<std::int32_t, double> rates;
  while (rates.size() < flows.size()) {
    double level = std::numeric_limits<double>::infinity();
    std::vector<double> levels(capacities.size(), level);
    for (std::size_t link = 0; link < capacities.size(); ++link) {
      double left = capacities[link];
      double weight = 0;
      for (const auto& [id, flow] : flows) {
        for (const LinkUse& use : flow.uses) {
          if (at(use.link) != link) continue;
          if (rates.contains(id)) left -= use.share * rates.at(id);
          if (!rates.contains(id)) weight += use.share;
        }
      }
      if (weight > 1e-12) levels[link] = left / weight;
      level = std::min(level, levels[link]);
    }
    for (const auto& [id, flow] : flows) {
      if (!rates.contains(id)) level = std::min(level, flow.rate);
    }
    std::map<std::int32_t, double> fixed;
    for (const auto& [id, flow] : flows) {
      const bool full = std::ranges::any_of(
          flow.uses, [&](const LinkUse& use) { return levels[use.link] <= level * (1 + 1e-9); });
      if (!rates.contains(id) && (full || flow.rate <= level)) fixed[id] = level;
    }
    rates.merge(fixed);
  }
  return rates;
}

// Between any two events rates are those of progressive filling from nothing, and in the end each
// flow has moved its bytes.
TEST(Flows, HaveTheRatesOfProgressiveFillingAtAnyTime) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<double> capacities(random.between(1, 8));
    for (double& capacity : capacities) capacity = static_cast<double>(random.between(1, 20));
    Flows flows(capacities);
    std::map<std::int32_t, Given> active;
    std::map<std::int32_t, double> left;
    double now = 0;
    for (int k = 0; k < 60; ++k) {
      if (active.empty() || random.chance(0.6)) {
        Given flow{.rate = static_cast<double>(random.between(1, 30))};
        for (std::size_t link = 0; link < capacities.size(); ++link) {
          if (random.chance(0.4)) {
            flow.uses.push_back({.link = static_cast<std::int32_t>(link),
                                 .share = 0.5 * static_cast<double>(random.between(1, 4))});
          }
        }
        const auto bytes = static_cast<double>(random.between(1, 50));
        const std::int32_t id = flows.start(now, flow.uses, {.bytes = bytes, .rate = flow.rate});
        active[id] = flow;
        left[id] = bytes;
      } else {
        const auto rates = fair_rates(active, capacities);
        const Flows::End end = flows.end_next();
        for (auto& [id, bytes] : left) bytes -= rates.at(id) * (end.time - now);
        now = end.time;
        EXPECT_NEAR(left.at(end.flow), 0, 1e-6);
        active.erase(end.flow);
        left.erase(end.flow);
      }
      for (const auto& [id, rate] : fair_rates(active, capacities)) {
        EXPECT_NEAR(flows.rate(id, now), rate, 1e-9 * (1 + rate));
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace shiplap::sim
