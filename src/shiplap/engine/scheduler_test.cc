#include "shiplap/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::engine {
namespace {

Task note_twice(Scheduler& scheduler, int name, std::vector<int>& order) {
  order.push_back(name);
  co_await scheduler.yield();
  order.push_back(name + 10);
}

TEST(Scheduler, WakesInTheOrderOfWaking) {
  Scheduler scheduler;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) scheduler.spawn(note_twice(scheduler, i, order));
  scheduler.run();
  EXPECT_EQ(order, (std::vector{0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(scheduler.woken(), 6);
}

Task many(Scheduler& scheduler, std::uint64_t seed, std::vector<int>& turns) {
  Random random(seed);
  const std::int64_t rounds = random.between(1, 20);
  for (int round = 0; round < rounds; ++round) {
    turns.push_back(round);
    co_await scheduler.yield();
  }
}

TEST(Scheduler, LetsAllTakeTheirTurnBeforeAnyTakesTheNext) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Scheduler scheduler;
    std::vector<int> turns;
    for (std::uint64_t task = 0; task < 30; ++task) {
      scheduler.spawn(many(scheduler, seed * 100 + task, turns));
    }
    scheduler.run();
    EXPECT_TRUE(std::ranges::is_sorted(turns)) << "seed " << seed;
    for (const Task& task : scheduler.tasks()) EXPECT_TRUE(task.done()) << "seed " << seed;
  }
}

Task fails() {
  throw std::runtime_error("no");
  co_return;
}
Task awaits_failing_task(std::string& message) {
  try {
    co_await fails();
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
}

TEST(Task, ThrowsWhereItIsAwaited) {
  Scheduler scheduler;
  std::string message;
  scheduler.spawn(awaits_failing_task(message));
  scheduler.spawn(fails());
  scheduler.run();
  EXPECT_EQ(message, "no");
  EXPECT_EQ(scheduler.first_failed(), 1U);
}

struct ManualEvent {
  Waiter* waiting = nullptr;
  auto wait() {
    struct Awaiter : Waiter {
      ManualEvent& event;
      explicit Awaiter(ManualEvent& b) : event(b) {}
      static bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<> caller) {
        handle = caller;
        next = event.waiting;
        event.waiting = this;
      }
      static void await_resume() {}
    };
    return Awaiter(*this);
  }
};
Task waits(ManualEvent& event, int& count) {
  co_await event.wait();
  ++count;
}
Task signals(Scheduler& scheduler, ManualEvent& event) {
  co_await scheduler.yield();
  scheduler.wake(*event.waiting);
}

TEST(Scheduler, WakesAWholeListAtOnceAndLeavesSleepersAsleep) {
  Scheduler scheduler;
  ManualEvent event;
  ManualEvent never;
  int count = 0;
  for (int i = 0; i < 5; ++i) scheduler.spawn(waits(event, count));
  scheduler.spawn(waits(never, count));
  scheduler.spawn(signals(scheduler, event));
  scheduler.run();
  EXPECT_EQ(count, 5);
  EXPECT_FALSE(scheduler.tasks()[5].done());
  EXPECT_TRUE(scheduler.tasks()[6].done());
}

}  // namespace
}  // namespace shiplap::engine
