#include "shiplap/engine/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::engine {
namespace {

Task note_at(Simulation& simulation, double time, int name, std::vector<int>& order) {
  co_await simulation.until({time});
  order.push_back(name);
}

TEST(Simulation, WakesInOrderOfTimeThenOfScheduling) {
  Simulation simulation;
  std::vector<int> order;
  simulation.spawn(note_at(simulation, 2, 0, order));
  simulation.spawn(note_at(simulation, 1, 1, order));
  simulation.spawn(note_at(simulation, 2, 2, order));
  simulation.spawn(note_at(simulation, 0, 3, order));
  simulation.run();
  EXPECT_EQ(order, (std::vector{3, 1, 0, 2}));
  EXPECT_EQ(simulation.now(), Seconds{2});
  EXPECT_EQ(simulation.woken(), 8);
}

// At one time: first what was scheduled for it before, then what is scheduled while it lasts.
Task twice(Simulation& simulation, int name, std::vector<int>& order) {
  co_await simulation.until({1});
  order.push_back(name);
  co_await simulation.pause({0});
  order.push_back(name + 10);
}

TEST(Simulation, WhatIsScheduledForNowComesLast) {
  Simulation simulation;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) simulation.spawn(twice(simulation, i, order));
  simulation.run();
  EXPECT_EQ(order, (std::vector{0, 1, 2, 10, 11, 12}));
}

Task many(Simulation& simulation, std::uint64_t seed, std::vector<double>& times) {
  Random random(seed);
  for (int i = 0; i < 20; ++i) {
    co_await simulation.pause({static_cast<double>(random.between(0, 5))});
    times.push_back(simulation.now().value);
  }
}

TEST(Simulation, TimeNeverRunsBackwards) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Simulation simulation;
    std::vector<double> times;
    for (std::uint64_t task = 0; task < 30; ++task) {
      simulation.spawn(many(simulation, seed * 100 + task, times));
    }
    simulation.run();
    EXPECT_EQ(times.size(), 600U) << "seed " << seed;
    EXPECT_TRUE(std::ranges::is_sorted(times)) << "seed " << seed;
  }
}

Task fails() {
  throw std::runtime_error("no");
  co_return;
}
Task calls_what_fails(std::string& said) {
  try {
    co_await fails();
  } catch (const std::runtime_error& error) {
    said = error.what();
  }
}

TEST(Task, ThrowsWhereItIsAwaited) {
  Simulation simulation;
  std::string said;
  simulation.spawn(calls_what_fails(said));
  simulation.spawn(fails());
  simulation.run();
  EXPECT_EQ(said, "no");
  EXPECT_EQ(simulation.failed(), 1U);
}

struct Bell {
  Waiter* waiting = nullptr;
  auto wait() {
    struct Awaiter : Waiter {
      Bell& bell;
      explicit Awaiter(Bell& b) : bell(b) {}
      static bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<> caller) {
        handle = caller;
        next = bell.waiting;
        bell.waiting = this;
      }
      static void await_resume() {}
    };
    return Awaiter(*this);
  }
};
Task waits(Bell& bell, int& count) {
  co_await bell.wait();
  ++count;
}
Task rings(Simulation& simulation, Bell& bell) {
  co_await simulation.pause({1});
  simulation.wake({3}, *bell.waiting);
}

TEST(Simulation, WakesAWholeListAtOnceAndLeavesSleepersAsleep) {
  Simulation simulation;
  Bell bell;
  Bell never;
  int count = 0;
  for (int i = 0; i < 5; ++i) simulation.spawn(waits(bell, count));
  simulation.spawn(waits(never, count));
  simulation.spawn(rings(simulation, bell));
  simulation.run();
  EXPECT_EQ(count, 5);
  EXPECT_EQ(simulation.now(), Seconds{3});
  EXPECT_FALSE(simulation.tasks()[5].done());
  EXPECT_TRUE(simulation.tasks()[6].done());
}

}  // namespace
}  // namespace shiplap::engine
