// Plans whose transfers share links.
#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/random.h"
#include "shiplap/sim/folding_testing_internal.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

Replay shared(const std::string& text, hardware::System system = slow_system()) {
  return replay(plan::parse_text("shiplap-plan 1\n" + text, "test.plan"),
                {.system = std::move(system), .shares_links = true});
}

// Nodes of two devices with one adapter, and leaves of two nodes.
hardware::System one_adapter(double oversubscription = 1) {
  hardware::System system = slow_system();
  system.node = {.devices = 2, .adapters = 1};
  system.networks[1].leaf = {.nodes = 2, .oversubscription = oversubscription};
  return system;
}

// Ranks 0 to n-1 send to the ranks n after them.
std::string senders(int count, int distance) {
  std::string text = "mesh r=" + std::to_string(2 * distance) + "\n";
  for (int rank = 0; rank < 2 * distance; ++rank) {
    const bool sends = rank < count;
    const bool receives = rank >= distance && rank < distance + count;
    text += "program p" + std::to_string(rank) + " on r=" + std::to_string(rank) +
            "\n  buffer x rows 1 row_bytes 100 u8\n";
    if (sends) text += "  send x to rank " + std::to_string(rank + distance) + "\n";
    if (receives) text += "  receive x from rank " + std::to_string(rank - distance) + "\n";
  }
  return text;
}

TEST(SharedLinks, OneMessageTakesItsTimeAlone) {
  // Between nodes: 2 s and 5 bytes per second.
  EXPECT_NEAR(shared(senders(1, 2), one_adapter()).end.value, 22, 1e-9);
  EXPECT_NEAR(shared(senders(1, 1), one_adapter()).end.value, 11, 1e-9);
}

// Two devices share an adapter of twice the bandwidth of each: nothing is full.
TEST(SharedLinks, AnAdapterHasTheBandwidthOfItsDevices) {
  EXPECT_NEAR(shared(senders(2, 2), one_adapter()).end.value, 22, 1e-9);
}

// From the first leaf of two nodes to the second: four messages at 5 bytes per second each over
// links of 20 bytes per second, or less if they are oversubscribed.
TEST(SharedLinks, TheSpineIsAsFullAsItIsOversubscribed) {
  EXPECT_NEAR(shared(senders(4, 4), one_adapter(1)).end.value, 22, 1e-9);
  EXPECT_NEAR(shared(senders(4, 4), one_adapter(4)).end.value, 2 + 400 / 5.0, 1e-9);
  EXPECT_NEAR(shared(senders(1, 4), one_adapter(4)).end.value, 22, 1e-9);  // alone 5 of 5
}

// Two all-reduces of the same ranks at the same time take twice as long.
TEST(SharedLinks, CollectivesOnTwoStreamsShareTheLinks) {
  const std::string text =
      "mesh r=2\nprogram p on all\n  buffer x rows 1 row_bytes 100 u8\n  streams s\n";
  const std::string once = "  all_reduce x over r\n";
  const std::string twice = once + "  @s all_reduce x over r/other\n";
  EXPECT_NEAR(shared(text + once).end.value, 11, 1e-9);
  EXPECT_NEAR(shared(text + twice).end.value, 21, 1e-9);
}

TEST(SharedLinks, ComputationAndLatencyUseNoLink) {
  const std::string text =
      "mesh r=2\nprogram p on all\n  buffer x rows 1 row_bytes 100 u8\n  streams s\n"
      "  all_reduce x over r\n  @s compute k work 5 seconds\n  @s all_reduce x over r/other\n";
  // Alone from 1 to 6, then both until 60 bytes more are moved: each has the half.
  const Replay replay = shared(text);
  EXPECT_NEAR(span_of(replay, 0, 0).end, 16, 1e-9);
  EXPECT_NEAR(span_of(replay, 0, 2).end, 21, 1e-9);
}

// Plans in which no two transfers overlap take the same times with both clocks.
TEST(SharedLinks, ChangeNothingIfNothingIsShared) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::string text = "mesh dp=" + std::to_string(random.between(1, 5)) +
                       " tp=" + std::to_string(random.between(1, 9)) +
                       "\nprogram p on all\n  buffer x rows 100 row_bytes 1000 u8\n";
    for (std::int64_t k = random.between(1, 9); k > 0; --k) {
      const std::vector<std::string> kinds{"all_reduce", "broadcast", "barrier", "compute k work"};
      const std::string kind = random.pick(kinds);
      const std::string rows = " x[0 +" + std::to_string(random.between(1, 100)) + "]";
      if (kind == "barrier") text += "  barrier over (dp, tp)\n";
      if (kind == "compute k work") text += "  compute k work 0.001 seconds\n";
      if (kind == "all_reduce" || kind == "broadcast") {
        text += "  " + kind + rows + " over (dp, tp)\n";
      }
    }
    hardware::System system = random.chance() ? slow_system() : hardware::find_system("h100");
    const plan::Plan plan = plan::parse_text("shiplap-plan 1\n" + text, "test.plan");
    const Replay alone = replay(plan, {.system = system});
    const Replay sharing = replay(plan, {.system = system, .shares_links = true});
    ASSERT_NEAR(sharing.end.value, alone.end.value, 1e-9 * alone.end.value);
    for (std::size_t rank = 0; rank < alone.trace.ranks.size(); ++rank) {
      const auto& events = alone.trace.ranks[rank].events;
      ASSERT_EQ(events.size(), sharing.trace.ranks[rank].events.size());
      for (std::size_t k = 0; k < events.size(); ++k) {
        const trace::Event& event = sharing.trace.ranks[rank].events[k];
        EXPECT_NEAR(event.time.value, events[k].time.value, 1e-9 * alone.end.value);
        EXPECT_NEAR(event.duration.value, events[k].duration.value, 1e-9 * alone.end.value);
      }
    }
  }
}

TEST(SlowLinks, ReduceTheBandwidthOfAnAdapter) {
  ReplayOptions options{.system = one_adapter(), .shares_links = true};
  options.slow_links = {{.rank = 0, .share = 0.25}};
  const auto end_of = [&](const std::string& text) {
    return replay(plan::parse_text("shiplap-plan 1\n" + text, "test.plan"), options).end.value;
  };
  EXPECT_NEAR(end_of(senders(1, 2)), 2 + 100 / 2.5, 1e-9);   // 2.5 of the 10 bytes/s of two
  EXPECT_NEAR(end_of(senders(2, 2)), 2 + 100 / 1.25, 1e-9);  // which both devices share
  EXPECT_NEAR(end_of(senders(1, 1)), 11, 1e-9);              // within a node
  options.slow_links.push_back({.rank = 1, .share = 0.5});   // the same adapter
  EXPECT_NEAR(end_of(senders(1, 2)), 2 + 100 / 2.5, 1e-9);
}

TEST(SlowRanks, TakeLongerToCompute) {
  ReplayOptions options{.system = slow_system(), .fold = true};
  options.slow_ranks = {{.rank = 3, .factor = 1.5}};
  const Replay all = replay(plan::parse_text("shiplap-plan 1\nmesh r=8\nprogram p on all\n"
                                             "  buffer x rows 1 row_bytes 10 u8\n"
                                             "  compute k work 10 seconds\n  all_reduce x over r\n",
                                             "test.plan"),
                            options);
  EXPECT_EQ(all.trace.ranks[2].events[0].duration.value, 10);
  EXPECT_EQ(all.trace.ranks[3].events[0].duration.value, 15);
  EXPECT_EQ(all.trace.ranks[2].events[1].time.value, 15);
}

TEST(SlowRanks, CommunicateAsFastAsOthers) {
  const plan::Plan plan = plan::parse_text(
      "shiplap-plan 1\nmesh r=2\ntable t\n  message 0 1 0 1 0\nprogram p on all\n"
      "  buffer x rows 1 row_bytes 100 u8\n  buffer y rows 1 row_bytes 100 u8\n"
      "  exchange x to y by t over r\n",
      "test.plan");
  ReplayOptions options{.system = slow_system()};
  const double alone = replay(plan, options).end.value;
  options.slow_ranks = {{.rank = 0, .factor = 2}};
  EXPECT_GT(alone, 0);
  EXPECT_EQ(replay(plan, options).end.value, alone);
}

// On stream s, `slow` waits for the receive; behind it in program order is a computation on t.
constexpr const char* kTwoStreams =
    "mesh r=2\nprogram a on r=0\n  buffer x rows 1 row_bytes 10 u8\n  streams s, t\n"
    "  got: receive x from rank 1\n  @s compute slow after got work 1 seconds\n"
    "  @t compute other work 5 seconds\n"
    "program b on r=1\n  buffer x rows 1 row_bytes 10 u8\n"
    "  compute before work 20 seconds\n  send x to rank 0\n";

TEST(OneQueue, StartsOperationsInProgramOrder) {
  ReplayOptions options{.system = slow_system()};
  const plan::Plan plan =
      plan::parse_text("shiplap-plan 1\n" + std::string(kTwoStreams), "test.plan");
  EXPECT_EQ(span_of(replay(plan, options), 0, 2), (Span{0, 5}));
  options.one_queue = true;
  const Replay queued = replay(plan, options);
  EXPECT_TRUE(queued.problems.empty());
  EXPECT_EQ(span_of(queued, 0, 1), (Span{22, 23}));
  EXPECT_EQ(span_of(queued, 0, 2), (Span{22, 27}));
}

// Each rank sends behind an operation that waits for what the other sends.
TEST(OneQueue, CanDeadlock) {
  const std::string program =
      "  buffer x rows 2 row_bytes 10 u8\n  streams s, t\n"
      "  got: receive x[0 +1] from rank (1 - r)\n  @s compute k after got work 1 seconds\n"
      "  @t send x[1 +1] to rank (1 - r)\n";
  const plan::Plan plan =
      plan::parse_text("shiplap-plan 1\nmesh r=2\nprogram p on all\n" + program, "test.plan");
  ReplayOptions options{.system = slow_system()};
  EXPECT_TRUE(replay(plan, options).problems.empty());
  options.one_queue = true;
  const Replay queued = replay(plan, options);
  ASSERT_EQ(queued.problems.size(), 3U);
  EXPECT_EQ(queued.problems[0].code, "D636");
  EXPECT_NE(queued.problems[1].what.find("rank 0: "), std::string::npos);
}

}  // namespace
}  // namespace shiplap::sim
