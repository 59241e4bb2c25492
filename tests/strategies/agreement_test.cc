// Two witnesses of time and memory: the clock on which a strategy ran, and the replay of the plan
// that it left. They share no code but the prices of single operations.
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

bool close(Seconds a, Seconds b) {
  return std::abs(a.value - b.value) <= 1e-9 * std::max(std::abs(a.value), std::abs(b.value));
}

std::string text(const trace::Event& e) {
  return std::string(name(e.kind)) + " layer " + std::to_string(e.layer) + " samples " +
         to_string(e.samples) + " stream " + std::to_string(e.stream) + " peer " +
         std::to_string(e.peer) + " bytes " + std::to_string(e.bytes.count) + " memory " +
         std::to_string(e.memory.count) + " match " + std::to_string(e.match);
}

// What the strategy logs: all but sums and copies, which have no event of their own there.
std::vector<trace::Event> logged(const trace::RankTrace& rank) {
  std::vector<trace::Event> events;
  std::ranges::copy_if(rank.events, std::back_inserter(events),
                       [](const trace::Event& e) { return e.kind != trace::Kind::compute; });
  return events;
}

void expect_agreement(const Trainer& trainer, const sim::Replay& replay) {
  ASSERT_TRUE(replay.problems.empty()) << render(replay.problems);
  ASSERT_EQ(replay.trace.ranks.size(), trainer.models().size());
  for (std::size_t r = 0; r < trainer.models().size(); ++r) {
    const std::vector<trace::Event> theirs = logged(replay.trace.ranks[r]);
    const std::vector<trace::Event>& ours = trainer.models()[r]->log();
    ASSERT_EQ(theirs.size(), ours.size()) << "rank " << r;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(text(theirs[i]), text(ours[i])) << "rank " << r << ", event " << i;
      ASSERT_TRUE(close(theirs[i].time, ours[i].time))
          << "rank " << r << ", event " << i << " " << text(ours[i]) << ": " << theirs[i].time.value
          << " and " << ours[i].time.value;
      ASSERT_TRUE(close(theirs[i].duration, ours[i].duration)) << "rank " << r << ", event " << i;
    }
  }
  EXPECT_TRUE(close(replay.end, trainer.time()));
}

class Agreement : public testing::TestWithParam<int> {};

TEST_P(Agreement, ReplayOfThePlanGivesTheTimesMemoryAndEventsOfTheStrategy) {
  for (const char* hardware : {"h100_80g_nvl8", "a100_80g"}) {
    const hardware::System system = hardware::find_system(hardware);
    for (const Case& c : all_cases(GetParam())) {
      SCOPED_TRACE(testing::Message() << c << " on " << hardware);
      const auto trainer = trained(c, system);
      const plan::Plan plan = to_plan(*trainer);
      expect_agreement(*trainer, sim::replay(plan, {.system = system, .eager_up_to = {}}));
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

// Machines that never were: slow links, slow memory, dear latency, so that what overlaps and what
// waits changes.
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
    const Entry& entry = find_strategy(c.strategy);
    World world = world_for(entry, c.size);
    world.system = system;
    world.eager_up_to = random.chance() ? Bytes{std::int64_t{1} << 40} : Bytes{0};
    Training training = training_for(entry, c.size);
    training.record = true;
    Trainer trainer(world, training);
    trainer.run(entry.strategy);
    expect_agreement(trainer, sim::replay(to_plan(trainer),
                                          {.system = system, .eager_up_to = world.eager_up_to}));
    if (HasFatalFailure()) return;
  }
}

// Only computation takes time.
TEST(Bubble, OfThePipelinesIsTheTextbooksWhenCommunicationIsFree) {
  hardware::System system = hardware::free_system();
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
            sim::replay(to_plan(*trainer), {.system = system, .eager_up_to = {}});
        const double textbook = (stages - 1.0) / (chunks * microbatches + stages - 1.0);
        const trace::Summary summary = trace::summarize(replay.trace);
        ASSERT_TRUE(summary.bubble.has_value());
        EXPECT_NEAR(*summary.bubble, textbook, 1e-9);
        EXPECT_NEAR(*trace::summarize(trainer->trace()).bubble, textbook, 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::strategy
