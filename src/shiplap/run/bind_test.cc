// Buffers of a plan that lie in memory of the caller's.
#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#include "shiplap/run/execute.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using testing::ElementsAre;

plan::Plan sums() {
  return plan::parse_text(R"(shiplap-plan 1
mesh dp=2
program all on all
  buffer x rows 2 row_bytes 4 f32
  buffer e rows 0 row_bytes 4 f32
  all_reduce x over dp
  compute look)",
                          "test");
}

std::span<std::byte> bytes_of(std::vector<float>& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}

TEST(Bind, AStepUsesTheMemoryThatIsBoundThen) {
  const plan::Plan plan = sums();
  KernelTable kernels;
  kernels.bind("look", [](const KernelCall&) {});
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, {.allocates = false});
    const auto rank = static_cast<float>(world.rank());
    std::vector<float> first{1 + rank, 2};
    std::vector<float> second{5, 6 + rank};
    executor.bind("x", bytes_of(first));
    executor.step();
    executor.bind("x", bytes_of(second));
    executor.step();
    EXPECT_EQ(executor.rows("x").data(), bytes_of(second).data());
    EXPECT_THAT(first, ElementsAre(3, 4));
    EXPECT_THAT(second, ElementsAre(10, 13));
  });
}

TEST(Bind, PromisesTheSizeAndThatNothingIsMissing) {
  const plan::Plan plan = sums();
  KernelTable kernels;
  kernels.bind("look", [](const KernelCall&) {});
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels);
    std::vector<float> three(3);
    EXPECT_THROW(executor.bind("x", bytes_of(three)), InternalError);
    EXPECT_THROW(executor.bind("y", bytes_of(three)), InternalError);
    executor.bind("x", {});
    EXPECT_THROW(executor.step(), InternalError);
  });
}

TEST(Bind, KeepsTheOwnerUntilSomethingElseIsBound) {
  const plan::Plan plan = sums();
  KernelTable kernels;
  kernels.bind("look", [](const KernelCall&) {});
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels);
    auto owner = std::make_shared<std::vector<float>>(2);
    const std::weak_ptr<void> watched = owner;
    executor.bind("x", bytes_of(*owner), owner);
    owner.reset();
    executor.step();
    EXPECT_FALSE(watched.expired());
    executor.bind("x", {});
    EXPECT_TRUE(watched.expired());
  });
}

// A transport that failed may still write to its buffers.
TEST(Bind, KeepsTheOwnerForEverAfterAFailure) {
  const plan::Plan plan = sums();
  KernelTable kernels;
  kernels.bind("look", [](const KernelCall&) { throw std::runtime_error("tired"); });
  std::array<std::weak_ptr<void>, 2> watched;
  const auto said = failures(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, {.allocates = false});
    auto owner = std::make_shared<std::vector<float>>(2);
    watched[world.rank()] = owner;
    executor.bind("x", bytes_of(*owner), owner);
    executor.step();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(said[rank].empty());
    EXPECT_FALSE(watched[rank].expired());
  }
}

}  // namespace
}  // namespace shiplap::run
