// `joined` computations: one kernel call that raises a counter for each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/execute.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

plan::Plan joined_plan(const std::string& body) {
  return plan::parse_text("shiplap-plan 1\nmesh dp=2\ntensor X Activation\nprogram all on all\n" +
                              ("  buffer x rows 4 row_bytes 4 f32\n" + body),
                          "test");
}

// Adds 1 to the row of each tile, in as many calls as it takes.
class CountedCalls {
 public:
  [[nodiscard]] KernelTable table() {
    KernelTable table;
    table.bind("add", [this](const KernelCall& call) {
      add(call);
      sizes_.push_back(1);
    });
    table.bind_joined("add", [this](const JoinedCall& call) {
      std::size_t tile = 0;
      for (; tile < call.tiles.size() && call.await(tile); ++tile) {
        EXPECT_TRUE(call.is_ready(tile));
        add(call.tiles[tile]);
        call.complete(tile);
        if (after_) after_(call.tiles[tile], tile);
      }
      sizes_.push_back(tile);
    });
    return table;
  }
  // Called in the kernel when a tile is complete.
  void after_each(std::function<void(const KernelCall&, std::size_t tile)> after) {
    after_ = std::move(after);
  }
  [[nodiscard]] const std::vector<std::size_t>& sizes() const { return sizes_; }

 private:
  static void add(const KernelCall& call) { call.accesses[0].as<float>()[0] += 1; }
  std::function<void(const KernelCall&, std::size_t)> after_;
  std::vector<std::size_t> sizes_;  // of the calls
};

// Reads a number that another thread may be writing: only to see that something has arrived.
[[gnu::noinline, gnu::no_sanitize("thread")]] float peek(const volatile float& x) { return x; }

class JoinedComputations : public testing::TestWithParam<Progress> {
 protected:
  // Runs a step on every rank. Returns the sizes of the calls of rank 0.
  std::vector<std::size_t> calls_of(const plan::Plan& plan) {
    std::vector<std::size_t> sizes;
    on_ranks(plan, [&](comm::Communicator& world) {
      CountedCalls calls;
      const KernelTable table = calls.table();
      Executor executor(plan, world, table, {.progress = GetParam()});
      executor.step();
      if (world.rank() == 0) sizes = calls.sizes();
    });
    return sizes;
  }
};
INSTANTIATE_TEST_SUITE_P(Progress, JoinedComputations,
                         testing::Values(Progress::threads, Progress::polled), [](const auto& it) {
                           return it.param == Progress::threads ? "Threads" : "Polled";
                         });

constexpr const char* kSendsEachTile = R"(
  buffer y rows 4 row_bytes 4 f32
  streams net, side
  repeat k 3
    r[k]: @net receive y[k +1] from dp+1 wrap tag k async
  end
  @side compute note after r[0]
    reads y[0 +1] = X
  repeat k 3
    t[k]: compute add joined
      adds x[k +1] = X
  end
  repeat k 3
    @net send x[k +1] to dp+1 wrap tag k after t[k] async
  end)";

TEST_P(JoinedComputations, SendATileWhileTheCallGoesOn) {
  const plan::Plan plan = joined_plan(kSendsEachTile);
  std::atomic<int> done = 0;  // calls that saw, before they returned, what the other rank had sent
  on_ranks(plan, [&](comm::Communicator& world) {
    CountedCalls calls;
    std::span<float> y;
    std::atomic<bool> noted = false;
    // Without threads the message arrives in this call itself, when it polls.
    const auto has_arrived = [&] {
      return GetParam() == Progress::threads ? noted.load() : peek(y[0]) == 1;
    };
    // The call does not return before the first tile of the other rank has arrived, which was sent
    // in the middle of a call that waits in the same way.
    calls.after_each([&](const KernelCall& call, std::size_t tile) {
      if (tile != 0) return;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!has_arrived() && std::chrono::steady_clock::now() < until) call.poll_progress();
      done += has_arrived() ? 1 : 0;
    });
    KernelTable table = calls.table();
    table.bind("note", [&](const KernelCall& /*call*/) { noted = true; });
    Executor executor(plan, world, table, {.progress = GetParam()});
    y = floats(executor.rows("y"));
    executor.step();
    EXPECT_THAT(calls.sizes(), ElementsAre(3));
    EXPECT_THAT(y, ElementsAre(1, 1, 1, 0));
  });
  EXPECT_EQ(done, 2);
}

TEST_P(JoinedComputations, WaitForWhatArrives) {
  const plan::Plan plan = joined_plan(R"(
  streams net
  repeat k 3
    r[k]: @net receive x[k +1] from dp+1 wrap tag k async
  end
  repeat k 3
    @net send x[3 +1] to dp+1 wrap tag k async
  end
  repeat k 3
    compute add after r[k] joined
      adds x[k +1] = X
  end)");
  on_ranks(plan, [&](comm::Communicator& world) {
    CountedCalls calls;
    const KernelTable table = calls.table();
    Executor executor(plan, world, table, {.progress = GetParam()});
    const std::span<float> x = floats(executor.rows("x"));
    x[3] = 5;
    executor.step();
    EXPECT_THAT(calls.sizes(), ElementsAre(3));
    EXPECT_THAT(x, ElementsAre(6, 6, 6, 5));
  });
}

TEST_P(JoinedComputations, AreOneCallOnlyIfNothingIsBetweenThem) {
  EXPECT_THAT(calls_of(joined_plan(R"(
  compute add
    adds x[0 +1] = X
  compute add joined
    adds x[0 +1] = X
  compute add joined
    adds x[1 +1] = X
  copy x[0 +1] to x[3 +1]
  compute add joined
    adds x[2 +1] = X
  compute add
    adds x[2 +1] = X)")),
              ElementsAre(1, 2, 1, 1));
}

TEST_P(JoinedComputations, AreCallsOfTheirOwnWithoutAJoinedKernel) {
  const plan::Plan plan = joined_plan(kSendsEachTile);
  on_ranks(plan, [&](comm::Communicator& world) {
    int calls = 0;
    KernelTable table;
    table.bind("add", [&](const KernelCall& /*call*/) { ++calls; });
    table.bind("note", [](const KernelCall& /*call*/) {});
    Executor executor(plan, world, table, {.progress = GetParam()});
    executor.step();
    EXPECT_EQ(calls, 3);
  });
}

TEST_P(JoinedComputations, AreNamedIfTheyFail) {
  const plan::Plan plan = joined_plan(kSendsEachTile);
  const auto step = [&](comm::Communicator& world) {
    CountedCalls calls;
    calls.after_each([&](const KernelCall& /*call*/, std::size_t tile) {
      if (tile == 0) throw InputError(Diagnostic{.code = "D814", .what = "no such group"});
    });
    KernelTable table = calls.table();
    table.bind("note", [](const KernelCall& /*call*/) {});
    Executor executor(plan, world, table, {.progress = GetParam()});
    executor.step();
  };
  try {
    on_ranks(plan, step);
    ADD_FAILURE() << "the step did not fail";
  } catch (const InputError& error) {
    EXPECT_THAT(error.diagnostics().front().where.operation, HasSubstr("t[1]: compute add"));
  }
}

// The second tile needs a message that the other rank sends when it has ours, which is computed on
// another stream.
TEST(Joined, WithoutThreadsACallMakesWayForWhatItWaitsFor) {
  const plan::Plan plan = joined_plan(R"(
  streams side, net
  r: @net receive x[1 +1] from dp+1 wrap async
  compute add joined
    adds x[0 +1] = X
  compute add after r joined
    adds x[1 +1] = X
  s: @side compute shift
    writes x[2 +1] = X
  @net send x[2 +1] to dp+1 wrap after s async)");
  std::atomic<int> made_way = 0;  // at least by the rank that sends first
  on_ranks(plan, [&](comm::Communicator& world) {
    CountedCalls calls;
    KernelTable table = calls.table();
    table.bind("shift", [](const KernelCall& call) { call.accesses[0].as<float>()[0] = 7; });
    Executor executor(plan, world, table, {.progress = Progress::polled});
    executor.step();
    made_way += calls.sizes().size() == 2 ? 1 : 0;
    EXPECT_THAT(floats(executor.rows("x")), ElementsAre(1, 8, 7, 0));
  });
  EXPECT_GE(made_way, 1);
}

}  // namespace
}  // namespace shiplap::run
