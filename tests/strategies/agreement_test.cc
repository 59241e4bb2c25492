// The log of a strategy (lowered for simulation) agrees with the replay of its plan (lowered for
// execution) in times, memory and events.
#include "agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cases.h"
#include "shiplap/base/random.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/text.h"
#include "shiplap/sim/replay.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/summary.h"

namespace shiplap::strategy {
namespace {

class Agreement : public testing::TestWithParam<int> {};

TEST_P(Agreement, ReplayOfThePlanGivesTheTimesMemoryAndEventsOfTheStrategy) {
  for (const char* hardware : {"h100_80g_nvl8", "a100_80g"}) {
    const hardware::System system = hardware::find_system(hardware);
    for (const Case& c : all_cases(GetParam())) {
      SCOPED_TRACE(testing::Message() << c << " on " << hardware);
      const auto trainer = trained(c, system);
      const plan::Plan plan = to_plan(*trainer);
      expect_agreement(*trainer, sim::replay(plan, {.system = system, .eager_limit = {}}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Agreement, ThePlanReadsBackFromItsText) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const Case& c : all_cases(GetParam())) {
    SCOPED_TRACE(testing::Message() << c);
    const plan::Plan plan = to_plan(*trained(c, system));
    EXPECT_EQ(plan::parse_text(plan::to_text(plan), "recorded"), plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Agreement, testing::Values(1, 2, 4, 8));

// Random machines with slow links or high latency, so that different transfers are exposed.
TEST(Agreement, HoldsOnRandomMachinesAndWithEagerMessages) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    hardware::System system = hardware::find_system("h100_80g_nvl8");
    for (hardware::Network& network : system.networks) {
      network.bandwidth.bytes_per_second *= std::pow(10, -3 * random.unit());
      network.latency.value *= std::pow(10, 4 * random.unit() - 1);
    }
    system.networks.front().size = random.between(1, 5);
    const int ranks = random.chance() ? 4 : 8;
    const std::vector<Case> cases = all_cases(ranks);
    const Case& c = random.pick(cases);
    SCOPED_TRACE(testing::Message() << c << ", seed " << seed);
    const StrategyInfo& entry = find_strategy(c.strategy);
    World world = world_for(entry, c.size);
    world.system = system;
    world.eager_limit = random.chance() ? Bytes{std::int64_t{1} << 40} : Bytes{0};
    Training training = training_for(entry, c.size);
    Trainer trainer(world, training);
    trainer.run(entry.strategy);
    expect_agreement(trainer, sim::replay(to_plan(trainer),
                                          {.system = system, .eager_limit = world.eager_limit}));
    if (HasFatalFailure()) return;
  }
}

// Only computation takes time.
TEST(Bubble, OfThePipelinesIsTheTextbooksWhenCommunicationIsFree) {
  hardware::System system = hardware::zero_cost_system();
  system.matrix = hardware::find_system("h100_80g_nvl8").matrix;
  for (const int stages : {2, 4, 8}) {
    for (const int microbatches : {stages, 2 * stages, 4 * stages}) {
      for (const std::string name : {"gpipe", "1f1b", "interleaved"}) {
        const int chunks = name == "interleaved" ? 2 : 1;
        const Case c{.strategy = name,
                     .size = {.ranks = stages,
                              .layers = 4 * stages,
                              .batch = microbatches,
                              .microbatches = microbatches,
                              .chunks = name == "interleaved" ? 2 : 0}};
        SCOPED_TRACE(testing::Message() << c);
        const auto trainer = trained(c, system);
        const sim::Replay replay =
            sim::replay(to_plan(*trainer), {.system = system, .eager_limit = {}});
        const double textbook = (stages - 1.0) / (chunks * microbatches + stages - 1.0);
        const trace::Summary summary = trace::summarize(replay.trace);
        EXPECT_NEAR(summary.bubble.value_or(-1), textbook, 1e-9);
        EXPECT_NEAR(trace::summarize(trainer->trace()).bubble.value_or(-1), textbook, 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::strategy
