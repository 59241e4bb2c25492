#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shiplap/comm/sockets/testing_internal.h"

// Which rank is reported when ranks wait for messages of ranks that wait themselves: the wait-for
// graph is traced to its ends.

namespace shiplap::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Seconds kTimeout{0.4};
constexpr double kLong = 2.5;  // until all have timed out

// The failure of each rank.
struct Reported {
  std::optional<int> culprit;
  std::string text;
};

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void receive_from(Communicator& world, int from) {
  std::vector<std::int32_t> number(1);
  world.receive(std::span(number), from);
}

// All ranks begin together, each after its nap. A rank that fails aborts its peers, as the executor
// of a plan does.
std::vector<Reported> run_chain(const std::vector<double>& naps,
                                const std::function<void(Communicator&)>& work) {
  std::vector<Reported> reported(naps.size());
  const auto guarded = [&](Communicator& world) {
    Reported& local = reported[world.rank()];
    world.barrier();
    world.set_timeout(kTimeout);
    nap(naps[world.rank()]);
    try {
      work(world);
    } catch (const RankFailed& error) {
      local = {.culprit = error.culprit(), .text = error.what()};
      world.abort(error.diagnostic().why, error.culprit());
    } catch (const Failure& error) {
      local = {.culprit = error.culprit(), .text = error.what()};
      world.abort(error.what(), error.culprit());
    }
  };
  const auto thrown = on_sockets(static_cast<int>(naps.size()), {.timeout = Seconds{20}}, guarded);
  for (const std::exception_ptr& one : thrown) EXPECT_EQ(text_of(one), "");
  return reported;
}

// Rank 3 computes, and each other rank waits for the next, whichever times out first.
TEST(WaitChain, EndWithTheOneThatDoesNotAnswer) {
  const std::vector<std::vector<double>> orders{
      {0, 0, 0, 0}, {0, 0.1, 0.2, 0}, {0.2, 0.1, 0, 0}, {0.1, 0, 0.2, 0}};
  for (const std::vector<double>& naps : orders) {
    const auto reported = run_chain(naps, [](Communicator& world) {
      world.rank() == 3 ? nap(kLong) : receive_from(world, world.rank() + 1);
    });
    for (int rank = 0; rank < 3; ++rank) {
      const Reported& one = reported[rank];
      EXPECT_EQ(one.culprit, 3) << "rank " << rank << ": " << one.text;
      EXPECT_THAT(one.text, HasSubstr("no reply from 3: "));
    }
  }
}

// A collective may be an edge of the chain.
TEST(WaitChain, GoThroughCollectives) {
  const auto reported = run_chain({0, 0, 0}, [](Communicator& world) {
    const auto pair = world.split(world.rank() == 0 ? 0 : 1, world.rank(), "pair");
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) pair->barrier();
    if (world.rank() == 2) nap(kLong);
  });
  EXPECT_EQ(reported[0].culprit, 2) << reported[0].text;
  EXPECT_EQ(reported[1].culprit, 2) << reported[1].text;
}

// Waits for both by polling, with a deadline of its own.
void receive_from_both(Communicator& world, int one, int other) {
  std::vector<std::int32_t> numbers(2);
  const std::span all(numbers);
  Request first = world.ireceive(all.first(1), one);
  Request second = world.ireceive(all.last(1), other);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kTimeout.value);
  for (bool is_over = false; !is_over; nap(1e-3)) {
    const bool has_first = first.test();
    const bool has_second = second.test();
    is_over = has_first && has_second;
    if (std::chrono::steady_clock::now() > end) first.time_out();
  }
}

// A rank that waits for two others is in both chains.
TEST(WaitChain, MayFork) {
  const auto reported = run_chain({0, 0.1, 0, 0}, [](Communicator& world) {
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) receive_from_both(world, 2, 3);
    if (world.rank() >= 2) nap(kLong);
  });
  for (const int rank : {0, 1}) {
    const Reported& one = reported[rank];
    EXPECT_THAT(one.text, HasSubstr("missing: ranks 2, 3"));
    EXPECT_FALSE(one.culprit == 2 || one.culprit == 3) << one.text;
  }
}

// Rank 1 times out for the message of rank 2 first. Rank 2 waits for rank 1, which waits for rank
// 0.
TEST(WaitChain, GoOnFromWhereTheyBegan) {
  const auto reported = run_chain({0, 0, 0}, [](Communicator& world) {
    if (world.rank() == 0) nap(kLong);
    if (world.rank() == 1) receive_from_both(world, 2, 0);
    if (world.rank() == 2) receive_from(world, 1);
  });
  EXPECT_EQ(reported[1].culprit, 0) << reported[1].text;
  EXPECT_EQ(reported[2].culprit, 0) << reported[2].text;
}

// A rank that computes and tests in between does not wait: the chain ends there.
TEST(WaitChain, EndWithOneThatComputes) {
  const auto reported = run_chain({0, 0, 0}, [](Communicator& world) {
    std::vector<std::int32_t> number(1);
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) {
      Request request = world.ireceive(std::span(number), 2);
      for (int k = 0; k < 2000 && !request.test(false); ++k) nap(1e-3);
    }
    if (world.rank() == 2) nap(kLong);
  });
  EXPECT_THAT(reported[0].text,
              AllOf(HasSubstr("missing: rank 1; "), Not(HasSubstr("no reply from"))));
  EXPECT_EQ(reported[0].culprit, std::nullopt);
}

TEST(WaitChain, MayBeOfOne) {
  const auto reported = run_chain({0}, [](Communicator& world) { receive_from(world, 0); });
  EXPECT_THAT(reported[0].text,
              HasSubstr("deadlock, ranks wait for each other: rank 0 is in receive"));
}

TEST(WaitChain, ThatLeadBackAreReportedAsDeadlock) {
  const auto reported = run_chain(
      {0, 0, 0}, [](Communicator& world) { receive_from(world, (world.rank() + 1) % 3); });
  const auto cycle = AllOf(HasSubstr("D301"), HasSubstr("deadlock, ranks wait for each other"),
                           HasSubstr("is in receive from rank"));
  for (const Reported& one : reported) EXPECT_NE(one.text, "");
  // The others may get an abort of the first, which is in the cycle as they are.
  EXPECT_TRUE(std::ranges::any_of(
      reported, [&](const Reported& one) { return testing::Matches(cycle)(one.text); }))
      << reported[0].text << reported[1].text << reported[2].text;
}

}  // namespace
}  // namespace shiplap::comm
