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

// Who is named when ranks wait for messages of ranks that wait themselves.

namespace shiplap::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr Seconds kTimeout{0.4};
constexpr double kLong = 2.5;  // until all have given up

// What each rank learned.
struct Learned {
  std::optional<int> culprit;
  std::string text;
};

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void receive_from(Communicator& world, int from) {
  std::vector<std::int32_t> number(1);
  world.receive(std::span(number), from);
}

// All begin together, each after its nap, and tells the others if it fails, as those who run a plan
// do.
std::vector<Learned> told(const std::vector<double>& naps,
                          const std::function<void(Communicator&)>& work) {
  std::vector<Learned> learned(naps.size());
  const auto guarded = [&](Communicator& world) {
    Learned& own = learned[world.rank()];
    world.barrier();
    world.set_timeout(kTimeout);
    nap(naps[world.rank()]);
    try {
      work(world);
    } catch (const RankFailed& error) {
      own = {.culprit = error.culprit(), .text = error.what()};
      world.leave(error.diagnostic().why, error.culprit());
    } catch (const Failure& error) {
      own = {.culprit = error.culprit(), .text = error.what()};
      world.leave(error.what(), error.culprit());
    }
  };
  const auto thrown = on_sockets(static_cast<int>(naps.size()), {.timeout = Seconds{20}}, guarded);
  for (const std::exception_ptr& one : thrown) EXPECT_EQ(text_of(one), "");
  return learned;
}

// Rank 3 computes, and everybody waits for the next: whoever gives up first.
TEST(Chains, EndWithTheOneThatDoesNotAnswer) {
  const std::vector<std::vector<double>> orders{
      {0, 0, 0, 0}, {0, 0.1, 0.2, 0}, {0.2, 0.1, 0, 0}, {0.1, 0, 0.2, 0}};
  for (const std::vector<double>& naps : orders) {
    const auto learned = told(naps, [](Communicator& world) {
      world.rank() == 3 ? nap(kLong) : receive_from(world, world.rank() + 1);
    });
    for (int rank = 0; rank < 3; ++rank) {
      const Learned& one = learned[rank];
      EXPECT_EQ(one.culprit, 3) << "rank " << rank << ": " << one.text;
      EXPECT_THAT(one.text, HasSubstr("no answer from 3: "));
    }
  }
}

// A collective may be a link of the chain.
TEST(Chains, GoThroughCollectives) {
  const auto learned = told({0, 0, 0}, [](Communicator& world) {
    const auto pair = world.split(world.rank() == 0 ? 0 : 1, world.rank(), "pair");
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) pair->barrier();
    if (world.rank() == 2) nap(kLong);
  });
  EXPECT_EQ(learned[0].culprit, 2) << learned[0].text;
  EXPECT_EQ(learned[1].culprit, 2) << learned[1].text;
}

// Waits for both, as who polls does, with a deadline of its own.
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

// One that waits for two is one of both chains.
TEST(Chains, MayFork) {
  const auto learned = told({0, 0.1, 0, 0}, [](Communicator& world) {
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) receive_from_both(world, 2, 3);
    if (world.rank() >= 2) nap(kLong);
  });
  for (const int rank : {0, 1}) {
    const Learned& one = learned[rank];
    EXPECT_THAT(one.text, HasSubstr("not there: ranks 2, 3"));
    EXPECT_FALSE(one.culprit == 2 || one.culprit == 3) << one.text;
  }
}

// Rank 1 gives up the message of rank 2 first, which waits for rank 1: but that waits for rank 0.
TEST(Chains, GoOnFromWhereTheyBegan) {
  const auto learned = told({0, 0, 0}, [](Communicator& world) {
    if (world.rank() == 0) nap(kLong);
    if (world.rank() == 1) receive_from_both(world, 2, 0);
    if (world.rank() == 2) receive_from(world, 1);
  });
  EXPECT_EQ(learned[1].culprit, 0) << learned[1].text;
  EXPECT_EQ(learned[2].culprit, 0) << learned[2].text;
}

// Who computes and looks in between is not waiting: the chain ends there.
TEST(Chains, EndWithOneThatComputes) {
  const auto learned = told({0, 0, 0}, [](Communicator& world) {
    std::vector<std::int32_t> number(1);
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) {
      Request request = world.ireceive(std::span(number), 2);
      for (int k = 0; k < 2000 && !request.test(false); ++k) nap(1e-3);
    }
    if (world.rank() == 2) nap(kLong);
  });
  EXPECT_THAT(learned[0].text,
              AllOf(HasSubstr("not there: rank 1; "), Not(HasSubstr("no answer from"))));
  EXPECT_EQ(learned[0].culprit, std::nullopt);
}

TEST(Chains, MayBeOfOne) {
  const auto learned = told({0}, [](Communicator& world) { receive_from(world, 0); });
  EXPECT_THAT(learned[0].text, HasSubstr("ranks wait for each other: rank 0 is in receive"));
}

TEST(Chains, ThatLeadBackAreSaidToBeCircles) {
  const auto learned =
      told({0, 0, 0}, [](Communicator& world) { receive_from(world, (world.rank() + 1) % 3); });
  const auto circle = AllOf(HasSubstr("D301"), HasSubstr("ranks wait for each other"),
                            HasSubstr("is in receive from rank"));
  for (const Learned& one : learned) EXPECT_NE(one.text, "");
  // The others may hear of it from the first, who is to blame as much as they are.
  EXPECT_TRUE(std::ranges::any_of(
      learned, [&](const Learned& one) { return testing::Matches(circle)(one.text); }))
      << learned[0].text << learned[1].text << learned[2].text;
}

}  // namespace
}  // namespace shiplap::comm
