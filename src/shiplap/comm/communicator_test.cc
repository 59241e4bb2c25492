// What failures say, on threads. That they happen when they should, on every transport, is what
// tests/comm asks.
#include "shiplap/comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "shiplap/base/error.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {
namespace {

// The text of what rank 0 of `ranks` gets to see.
std::string said(int ranks, const std::function<void(Communicator&)>& work) {
  std::string text;
  run_on_threads({.ranks = ranks, .timeout = Seconds{0.2}}, [&](Communicator& world) {
    try {
      work(world);
    } catch (const Failure& error) {
      if (world.rank() == 0) text = error.what();
    } catch (const InputError& error) {
      if (world.rank() == 0) text = error.what();
    }
  });
  return text;
}

TEST(Communicator, RefusesWhatMakesNoSense) {
  EXPECT_EQ(said(2, [](Communicator& world) { world.send<float>({}, 2); }),
            "error[D300]: rank 2 is not in `world`, which has 2 ranks\n --> send\n");
}

TEST(Communicator, SaysWhoIsMissingAtADeadline) {
  EXPECT_EQ(said(3,
                 [](Communicator& world) {
                   if (world.rank() != 2) world.barrier();
                 }),
            "error[D301]: barrier number 0 in `world`, a group of 3, did not end within 200 ms\n"
            " --> rank 0, barrier number 0\n"
            "  = not there: rank 2\n");
}

TEST(Communicator, SaysWhichRankFailedAndWhy) {
  std::string text;
  EXPECT_THROW(run_on_threads({.ranks = 2},
                              [&](Communicator& world) {
                                if (world.rank() == 1) throw std::runtime_error("planted");
                                try {
                                  world.barrier();
                                } catch (const RankFailed& error) {
                                  text = error.what();
                                }
                              }),
               std::runtime_error);
  EXPECT_EQ(text, "error[D302]: rank 1 failed\n --> rank 0\n  = planted\n");
}

TEST(Communicator, SaysHowRanksDiffer) {
  EXPECT_EQ(said(3,
                 [](Communicator& world) {
                   std::vector<float> data(world.rank() == 2 ? 3 : 4);
                   world.all_reduce(std::span(data));
                 }),
            "error[D303]: in `world` rank 2 called all_reduce number 0 (f32 x 3, sum), the others "
            "all_reduce number 0 (f32 x 4, sum)\n --> rank 0\n");
}

TEST(Communicator, SaysThatAMessageIsTooLong) {
  EXPECT_EQ(said(2,
                 [](Communicator& world) {
                   std::array<std::int32_t, 4> data{};
                   if (world.rank() == 1) world.send(std::span<const std::int32_t>(data), 0);
                   if (world.rank() == 0) world.receive(std::span(data).first(2), 1);
                 }),
            "error[D304]: a message from rank 1 is longer than the 8 bytes that were to receive "
            "it\n --> rank 0\n");
}

TEST(Communicator, RepeatsWhyItIsDead) {
  EXPECT_EQ(said(2,
                 [](Communicator& world) {
                   if (world.rank() == 1) return;
                   EXPECT_THROW(world.barrier(), DeadlinePassed);
                   EXPECT_FALSE(world.alive());
                   world.barrier();
                 }),
            "error[D305]: communicator `world` is dead\n --> rank 0\n"
            "  = barrier number 0 in `world`, a group of 2, did not end within 200 ms on rank 0; "
            "not there: rank 1\n");
}

TEST(Communicator, CountsRanksOfTheWorldInItsFailures) {
  EXPECT_NE(said(4,
                 [](Communicator& world) {
                   const auto half = world.split(world.rank() % 2, 0, "half");
                   if (world.rank() != 2) half->barrier();
                 })
                .find("not there: rank 2"),
            std::string::npos);
}

}  // namespace
}  // namespace shiplap::comm
