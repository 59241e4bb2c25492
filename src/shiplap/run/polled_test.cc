// Steps without threads. execute_test.cc runs all its plans in this way too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr ExecuteOptions kPolled{.progress = Progress::polled};

plan::Plan plan_of(const std::string& text) {
  return plan::parse_text("shiplap-plan 1\n" + text, "test");
}

TEST(Polled, AKernelThatLooksAroundGetsItsMessages) {
  const plan::Plan plan = plan_of(R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  buffer y rows 1 row_bytes 4 f32
  buffer z rows 1 row_bytes 4 f32
  streams net
  r: @net receive y from dp+1 wrap async
  @net send x to dp+1 wrap async
  @net copy y to z after r
  compute patience
  @net send y to dp+1 wrap tag 1 after r async
  @net receive x from dp+1 wrap tag 1 async)");
  std::array<float, 2> seen{};
  on_ranks(plan, [&](comm::Communicator& world) {
    std::span<float> z;  // written by this thread itself, when it polls
    KernelTable kernels;
    kernels.bind("patience", [&](const KernelCall& call) {
      EXPECT_TRUE(call.is_polled());
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (z[0] == 0 && std::chrono::steady_clock::now() < until) call.poll_progress();
      seen[world.rank()] = z[0];
    });
    Executor executor(plan, world, kernels, kPolled);
    z = floats(executor.rows("z"));
    floats(executor.rows("x"))[0] = 7 + static_cast<float>(world.rank());
    executor.step();
    EXPECT_EQ(floats(executor.rows("x"))[0], 7 + static_cast<float>(world.rank()));
  });
  EXPECT_THAT(seen, ElementsAre(8, 7));
}

// Each of the two waits for what the other one sends from another stream, after a computation.
TEST(Polled, StreamsTakeTurns) {
  const plan::Plan plan = plan_of(R"(mesh dp=2
tensor X Activation
program all on all
  buffer x rows 5 row_bytes 4 f32
  streams a, b
  repeat k 3
    @a receive x[k +1] from dp+1 wrap tag k
    c[k]: @a compute add
      adds x[k +1] = X
    @b send x[k+1 +1] to dp+1 wrap tag k+1 after c[k] async
  end
  @b receive x[3 +1] from dp+1 wrap tag 3
  send x[4 +1] to dp+1 wrap tag 0)");
  on_ranks(plan, [&](comm::Communicator& world) {
    KernelTable kernels;
    kernels.bind("add", [](const KernelCall& call) { call.accesses[0].as<float>()[0] += 1; });
    Executor executor(plan, world, kernels, kPolled);
    const std::span<float> x = floats(executor.rows("x"));
    for (std::size_t k = 0; k < 5; ++k) x[k] = static_cast<float>(k) * 10;
    executor.step();
    EXPECT_THAT(x, ElementsAre(41, 11, 21, 30, 40));
  });
}

std::vector<std::string> rejected(const std::string& lines) {
  const plan::Plan plan = plan_of(
      "mesh dp=2 tp=2\nprogram all on all\n  buffer x rows 2 row_bytes 4 f32\n"
      "  buffer y rows 2 row_bytes 4 f32\n  streams net\n" +
      lines);
  const KernelTable kernels;
  return failures(
      plan, [&](comm::Communicator& world) { Executor(plan, world, kernels, kPolled).step(); });
}

TEST(Polled, RefusesCollectivesBesideOtherStreams) {
  const auto said = rejected(R"(  all_reduce x[0 +1] over dp
  @net send x[1 +1] to dp+1 wrap async
  @net receive y[1 +1] from dp+1 wrap)");
  EXPECT_THAT(said, Each(StartsWith("D643")));
  EXPECT_THAT(said, Each(HasSubstr("all_reduce and send")));
}

// A rank that waits in the first would never come to what the others need.
TEST(Polled, RefusesWhatGoesOnBesideACollective) {
  for (const std::string lines :
       {"  all_reduce x over dp async\n  send y to dp+1 wrap async\n  receive y from dp+1 wrap",
        "  all_reduce x over dp async\n  all_reduce y over tp async",
        "  batch\n    all_reduce x over dp\n    all_reduce y over tp\n  end"}) {
    EXPECT_THAT(rejected(lines), Each(StartsWith("D643"))) << lines;
  }
  for (const std::string lines :
       {"  all_reduce x over dp async\n  all_reduce y over dp async",
        "  batch\n    all_reduce x over dp\n  end\n  all_reduce y over tp",
        "  all_reduce x over dp\n  all_reduce y over tp\n  all_reduce x over tp async"}) {
    EXPECT_THAT(rejected(lines), Each("")) << lines;
  }
}

TEST(Polled, AKernelThatThrowsEndsAllRanks) {
  const plan::Plan plan = plan_of(R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  when dp=0
    compute odd
    send x to dp+1
  end
  when dp=1
    receive x from dp-1
  end)");
  KernelTable kernels;
  kernels.bind("odd", [](const KernelCall&) { throw std::runtime_error("odd"); });
  const auto said = failures(
      plan, [&](comm::Communicator& world) { Executor(plan, world, kernels, kPolled).step(); });
  EXPECT_THAT(said[0], HasSubstr("odd"));
  EXPECT_THAT(said[1], StartsWith("D302"));
}

TEST(Polled, WhatNeverComesIsLate) {
  const plan::Plan plan = plan_of(R"(mesh dp=2
program all on all
  buffer x rows 1 row_bytes 4 f32
  when dp=0
    g: receive x from dp+1 tag 5
  end)");
  const KernelTable kernels;
  const auto said = failures(plan,
                             [&](comm::Communicator& world) {
                               Executor executor(plan, world, kernels, kPolled);
                               if (world.rank() == 0) executor.step();
                               world.set_timeout({5});
                               if (world.rank() == 1) world.barrier();
                             },
                             {0.3});
  EXPECT_THAT(said[0], StartsWith("D301"));
  EXPECT_THAT(said[0], HasSubstr("g: receive"));
}

}  // namespace
}  // namespace shiplap::run
