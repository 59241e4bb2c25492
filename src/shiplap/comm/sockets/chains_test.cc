#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shiplap/comm/sockets/testing_internal.h"

// Who is named when ranks wait for messages of ranks that wait themselves.

namespace shiplap::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Seconds kTimeout{0.4};

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

// Every rank begins after its nap, and tells the others if it fails, as those who run a plan do.
std::vector<Learned> told(const std::vector<double>& naps,
                          const std::function<void(Communicator&)>& work) {
  std::vector<Learned> learned(naps.size());
  const auto guarded = [&](Communicator& world) {
    Learned& own = learned[static_cast<std::size_t>(world.rank())];
    nap(naps[static_cast<std::size_t>(world.rank())]);
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
  const auto thrown = on_sockets(static_cast<int>(naps.size()), {.timeout = kTimeout}, guarded);
  for (const std::exception_ptr& one : thrown) EXPECT_EQ(text_of(one), "");
  return learned;
}

// Rank 3 computes, and everybody waits for the next: whoever gives up first.
TEST(Chains, EndWithTheOneThatDoesNotAnswer) {
  const std::vector<std::vector<double>> orders{
      {0, 0, 0, 0}, {0, 0.1, 0.2, 0}, {0.2, 0.1, 0, 0}, {0.1, 0, 0.2, 0}};
  for (const std::vector<double>& naps : orders) {
    const auto learned = told(naps, [](Communicator& world) {
      world.rank() == 3 ? nap(1.5) : receive_from(world, world.rank() + 1);
    });
    for (int rank = 0; rank < 3; ++rank) {
      const Learned& one = learned[static_cast<std::size_t>(rank)];
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
    if (world.rank() == 2) nap(1.5);
  });
  EXPECT_EQ(learned[0].culprit, 2) << learned[0].text;
  EXPECT_EQ(learned[1].culprit, 2) << learned[1].text;
}

// One that waits for two is one of both chains.
TEST(Chains, MayFork) {
  const auto learned = told({0, 0.1, 0, 0}, [](Communicator& world) {
    std::vector<std::int32_t> numbers(2);
    const std::span all(numbers);
    if (world.rank() == 0) receive_from(world, 1);
    if (world.rank() == 1) {
      Request first = world.ireceive(all.first(1), 2);
      Request second = world.ireceive(all.last(1), 3);
      while (!first.test() || !second.test()) nap(1e-3);
    }
    if (world.rank() == 2) world.send(std::span<const std::int32_t>(numbers).first(1), 1);
    if (world.rank() >= 2) nap(1.5);
  });
  EXPECT_EQ(learned[0].culprit, 3) << learned[0].text;
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
