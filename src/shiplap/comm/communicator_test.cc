// Texts of failures, on threads. tests/comm tests on every transport when they are thrown.
#include "shiplap/comm/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "shiplap/base/error.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {
namespace {

// Returns the text of the exception on rank 0.
std::string text_on_rank_0(int ranks, const std::function<void(Communicator&)>& work) {
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

TEST(Communicator, RejectsInvalidArguments) {
  EXPECT_EQ(text_on_rank_0(2, [](Communicator& world) { world.send<float>({}, 2); }),
            "error[D300]: rank 2 is not in `world`, which has 2 ranks\n --> send\n");
}

TEST(Communicator, NamesTheMissingRankOnTimeout) {
  EXPECT_EQ(text_on_rank_0(3,
                           [](Communicator& world) {
                             if (world.rank() != 2) world.barrier();
                           }),
            "error[D301]: barrier number 0 in `world`, a group of 3, timed out after 200 ms\n"
            " --> rank 0, barrier number 0\n"
            "  = missing: rank 2\n");
}

TEST(Communicator, NamesTheFailedRankAndTheReason) {
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

TEST(Communicator, DescribesAMismatch) {
  EXPECT_EQ(text_on_rank_0(3,
                           [](Communicator& world) {
                             std::vector<float> data(world.rank() == 2 ? 3 : 4);
                             world.all_reduce(std::span(data));
                           }),
            "error[D303]: mismatch in `world`: rank 2 called all_reduce number 0 (f32 x 3, sum), "
            "the others "
            "all_reduce number 0 (f32 x 4, sum)\n --> rank 0\n");
}

TEST(Communicator, ReportsAMessageThatIsTooLong) {
  EXPECT_EQ(text_on_rank_0(2,
                           [](Communicator& world) {
                             std::array<std::int32_t, 4> data{};
                             if (world.rank() == 1)
                               world.send(std::span<const std::int32_t>(data), 0);
                             if (world.rank() == 0) world.receive(std::span(data).first(2), 1);
                           }),
            "error[D304]: a message from rank 1 is too long for the receive buffer of 8 bytes\n"
            " --> rank 0\n");
}

TEST(Communicator, RepeatsWhyItIsDead) {
  EXPECT_EQ(text_on_rank_0(2,
                           [](Communicator& world) {
                             if (world.rank() == 1) return;
                             EXPECT_THROW(world.barrier(), TimeoutError);
                             EXPECT_FALSE(world.alive());
                             world.barrier();
                           }),
            "error[D305]: communicator `world` is dead\n --> rank 0\n"
            "  = barrier number 0 in `world`, a group of 2, timed out after 200 ms on rank 0; "
            "missing: rank 1\n");
}

TEST(Communicator, ReportsRanksOfTheWorld) {
  EXPECT_NE(text_on_rank_0(4,
                           [](Communicator& world) {
                             const auto half = world.split(world.rank() % 2, 0, "half");
                             if (world.rank() != 2) half->barrier();
                           })
                .find("missing: rank 2"),
            std::string::npos);
}

}  // namespace
}  // namespace shiplap::comm
